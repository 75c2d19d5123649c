"""The devices on which arrays live, with one file for each kind of device."""
