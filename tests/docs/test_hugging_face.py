"""Tests the guide's statements about Hugging Face's packages, which no extra installs."""

import re

import pytest

from tests.docs import guides


@pytest.mark.slow
def test_data_sets_and_tokenizers(capsys):
    pytest.importorskip("datasets")
    pytest.importorskip("tokenizers")
    text = (guides.ROOT / "docs/guides/data.md").read_text("utf-8")
    code, expected = re.search(r"```py\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == expected
