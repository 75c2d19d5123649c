"""The live page of a run, which a separate process serves to browsers of this host.

``mpchain-launch --page``, or :class:`mpchain.training.extensions.PageReport` without a launcher,
starts ``python -m mpchain.page``, writes events to its standard input, and reads requests from its
standard output. So run and page exchange no files, and the page ends with the run.

- :mod:`mpchain.page.run`: the state of the run, and the updates that a browser needs.
- :mod:`mpchain.page.site`: the answers to requests, and the rules that refuse requests.
- :mod:`mpchain.page.server`: the process.
- ``assets/``: the files that the browser runs; it loads nothing from other servers.
"""
