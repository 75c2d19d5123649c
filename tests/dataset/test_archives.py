"""Tests malicious and damaged archives."""

import io
import tarfile

import pytest

from mpchain.dataset.archives import check_names, read_tar


def make_tar(path, members, mode="w:gz"):
    """Writes a tar file; ``members`` maps names to bytes, or to a TarInfo."""
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = content
            if isinstance(content, bytes):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                archive.addfile(info)


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_read_tar(tmp_path, mode):
    make_tar(tmp_path / "a", {"d/x": b"abc", "d/y": b"", "unwanted": b"!" * 99}, mode)
    assert read_tar(tmp_path / "a", {"d/x": 3, "d/y": 0}) == {"d/x": b"abc", "d/y": b""}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


NAMES = ["../x", "a/../../x", "/etc/passwd", "..", "\\x", "a\\..\\..\\x", "C:/x", "C:\\x"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_out_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="leads out of the archive's folder"):
        check_names("a.zip", ["fine.png", name])
    make_tar(tmp_path / "a", {"x": b"abc", name: b"abc"})
    with pytest.raises(ValueError, match=f"{tmp_path}/a: member .* leads out of the archive's fol"):
        read_tar(tmp_path / "a", {"x": 3})


def test_names_that_stay_inside():
    check_names("a.zip", ["a", "a/b..c", "a/.../b", "./a", "a/b:c"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_are_not_followed(tmp_path, kind):
    make_tar(tmp_path / "a", {"x": b"abc", "y": link("y", "x", kind)})
    with pytest.raises(
        ValueError, match="'y' must be a file of 3 bytes, but it is not a regular file"
    ):
        read_tar(tmp_path / "a", {"y": 3})


def test_a_wrong_size(tmp_path):
    make_tar(tmp_path / "a", {"x": b"abc"})
    with pytest.raises(
        ValueError, match="'x' must be a file of 4 bytes, but it is a file of 3 bytes"
    ):
        read_tar(tmp_path / "a", {"x": 4})


def test_a_missing_member(tmp_path):
    make_tar(tmp_path / "a", {"x": b"abc"})
    with pytest.raises(ValueError, match=f"{tmp_path}/a: missing member y, z"):
        read_tar(tmp_path / "a", {"x": 3, "z": 1, "y": 1})


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_a_truncated_archive(tmp_path, keep):
    random = bytes((i * i * 31 + i) % 251 for i in range(5000))
    make_tar(tmp_path / "a", {"x": random})
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:keep])
    with pytest.raises(ValueError, match=f"{tmp_path}/a cannot be read as a tar archive"):
        read_tar(tmp_path / "a", {"x": 5000})
