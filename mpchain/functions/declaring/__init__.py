"""The machine of declarations: what makes functions of Variables of bodies and derivatives."""
