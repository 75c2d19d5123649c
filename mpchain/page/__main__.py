"""Serves the page of the run that writes its events to standard input."""

from mpchain.page.server import main

if __name__ == "__main__":
    raise SystemExit(main())
