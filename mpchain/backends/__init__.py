"""The devices that arrays live on: one file per kind."""
