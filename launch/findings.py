"""The doctor's findings, and their display."""

import json

OK, NOTE, WARNING, FAILURE = "ok", "note", "WARN", "FAIL"


class Finding:
    """One line of the doctor's report.

    Args:
        item: The subject of the test.
        verdict: `OK`, `NOTE`, `WARNING` or `FAILURE`.
        found: The result of the test.
        hint: The action to take; empty if no action is needed.
        host: The name of the host; empty for all hosts.

    Example:
        >>> vars(Finding("numpy", FAILURE, "none", "pip install numpy"))["hint"]
        'pip install numpy'
    """

    def __init__(self, item: str, verdict: str, found: object, hint: str = "", host: str = ""):
        self.item, self.verdict, self.found = item, verdict, str(found)
        self.hint, self.host = hint, host


def show(findings: list[Finding], as_json: bool) -> int:
    """Prints findings as a table or as JSON.

    Returns:
        1 if there is a failure, otherwise 0.

    Example:
        >>> show([Finding("numpy", OK, "2.4.6")], as_json=False)
        ok  numpy  2.4.6
        0
    """
    if as_json:
        print(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        print(table(findings))
    return int(any(finding.verdict == FAILURE for finding in findings))


def table(findings: list[Finding]) -> str:
    """Returns the report as a table.

    Example:
        >>> print(table([Finding("numpy", OK, "2.4.6"), Finding("cuda", NOTE, "none")]))
        ok    numpy  2.4.6
        note  cuda   none
    """
    several = any(finding.host for finding in findings)
    rows = [[f.verdict, *[f.host or "all"] * several, f.item] for f in findings]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for row, finding in zip(rows, findings):
        left = "  ".join(word.ljust(width) for word, width in zip(row, widths))
        hint = f"  -- {finding.hint}" if finding.hint else ""
        lines.append(f"{left}  {finding.found}{hint}")
    return "\n".join(lines)
