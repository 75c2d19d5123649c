"""Tests ``mpchain-launch prove`` on each script of ``examples/``."""

import pytest

from tests.distributed import ranks
from tests.examples.test_examples import ALL, FOLDER
from tests.prove import programs

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(bool(ranks.why_not()), reason=ranks.why_not() or "-"),
]

# For each script that computes something else on ranks, as its README states, a text of the
# finding.
DEVIATIONS = {
    "imagenet/train_imagenet.py": "statistics of a batch",
    "own_gradient_compression/train_signs.py": "compression",
}
ON_THREE = {"own_link/train_own_link.py": "local statistics"}
# With --test, this script makes too few updates.
OPTIONS = {"wgan_gp/train_wgan_gp.py": ["--epoch", "1"]}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("script", ALL)
def test_an_example(script, n, tmp_path):
    if script.startswith("imagenet/"):
        pytest.importorskip("PIL", reason="needs Pillow, which reads images")
    options = [*OPTIONS.get(script, ["--test"]), "--out", tmp_path / "out"]
    # These scripts have neither option.
    if script.startswith("double_backward/"):
        options = []
    path = FOLDER / script
    code, output = programs.prove(path, n, arguments=options, folder=tmp_path)
    deviation = DEVIATIONS.get(script, ON_THREE.get(script) if n == 3 else None)
    if "create_multi_node_optimizer" not in path.read_text("utf-8") and deviation is None:
        assert output.startswith("refused: ") and "no multi-node optimizer" in output, output
    elif deviation is None:
        assert code == 0 and output.startswith("proved: 3 steps"), output
    else:
        assert code == 1 and output.startswith("not the same") and deviation in output, output
        assert "mpchain-launch prove" in (path.parent / "README.md").read_text("utf-8")
