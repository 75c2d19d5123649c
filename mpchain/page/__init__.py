"""The live page of a run, which a separate process serves to browsers of this host.

``mpchain-launch --page``, or :class:`mpchain.training.extensions.PageReport` where there is no
launcher, starts ``python -m mpchain.page``, writes events to its standard input, and reads requests
from its standard output. So the page needs no files, and ends with the run.

- :mod:`mpchain.page.run`: what is known of the run, and what a browser has not seen of it.
- :mod:`mpchain.page.site`: which request gets which answer, and which gets none.
- :mod:`mpchain.page.server`: the process.
- ``assets/``: what the browser runs. Nothing comes from elsewhere.
"""
