"""Networks that classify images, with the parameters that were published for them."""
