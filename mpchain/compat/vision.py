"""Imitates the parts of Chainer's residual networks by which programs load published parameters."""

import dataclasses
from typing import Any

from mpchain.links.model.vision.pretrained import copy_layer, copy_normalization, load_parameters
from mpchain.links.model.vision.resnet import _transfer_unit


def _retrieve(n_layers: int, name_npz: str, name_caffemodel: str, model: Any) -> Any:
    """Loads published parameters from the download cache, by the name of their file."""
    model.published = dataclasses.replace(model.published, file=name_caffemodel)
    load_parameters(model, "auto")
    return model


class _Layers:
    """Gives access to the children of a chain by layer name, as a CaffeFunction does."""

    def __init__(self, chain: Any):
        self.named_layers = getattr(chain, "named_layers", None) or (
            lambda: [(link.name, link) for link in chain.children()]
        )


def _transfer_components(src: Any, dst_conv: Any, dst_bn: Any, bname: str, cname: str) -> None:
    """Copies a convolution and its normalization."""
    src = _Layers(src)
    copy_layer(dst_conv, src, f"res{bname}_branch{cname}")
    copy_normalization(dst_bn, src, f"bn{bname}_branch{cname}", f"scale{bname}_branch{cname}")


def _transfer_bottleneckA(src: Any, dst: Any, name: str) -> None:
    """Copies the parameters of one bottleneck unit."""
    _transfer_unit(dst, _Layers(src), name)


def _transfer_block(src: Any, dst: Any, names: list[str]) -> None:
    """Copies the parameters of all units of a BuildingBlock."""
    for unit, name in zip(dst.units, names, strict=True):
        _transfer_unit(unit, _Layers(src), name)


def _transfer_resnet50(src: Any, dst: Any) -> None:
    """Copies the parameters of a whole ResNet-50."""
    dst.transfer_from_caffe(src)


_transfer_bottleneckB = _transfer_bottleneckA
_transfer_resnet101 = _transfer_resnet152 = _transfer_resnet50
