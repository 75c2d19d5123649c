"""GoogLeNet."""

import functools
from collections.abc import Callable
from typing import Any

from mpchain import functions as F
from mpchain.initializers import LeCunUniform
from mpchain.link import Chain
from mpchain.links.blocks import Inception
from mpchain.links.connection import Linear
from mpchain.links.convolution import Convolution2D
from mpchain.links.model.vision.pretrained import PublishedModel, copy_layer
from mpchain.links.model.vision.vision_model import VisionModel, prepare_image
from mpchain.typing import Array

_MEAN = (104, 117, 123)

# For each inception module, these are the input channels, out1, proj3, out3, proj5, out5 and
# proj_pool.
_INCEPTIONS = {
    "3a": (192, 64, 96, 128, 16, 32, 32),
    "3b": (256, 128, 128, 192, 32, 96, 64),
    "4a": (480, 192, 96, 208, 16, 48, 64),
    "4b": (512, 160, 112, 224, 24, 64, 64),
    "4c": (512, 128, 128, 256, 24, 64, 64),
    "4d": (512, 112, 144, 288, 32, 64, 64),
    "4e": (528, 256, 160, 320, 32, 128, 128),
    "5a": (832, 256, 160, 320, 32, 128, 128),
    "5b": (832, 384, 192, 384, 48, 128, 128),
}
_OF_CAFFE = {
    "conv1": "1x1",
    "proj3": "3x3_reduce",
    "conv3": "3x3",
    "proj5": "5x5_reduce",
    "conv5": "5x5",
    "projp": "pool_proj",
}


def prepare(image: object, size: tuple[int, int] | None = (224, 224)) -> Array:
    """Converts an image to the input of GoogLeNet.

        >>> prepare(np.zeros((10, 20, 3), np.uint8), size=None).shape  # colors, height, width
        (3, 10, 20)

    Args:
        image: a PIL image, or an array of pixels from 0 to 255: (H, W), (H, W, C) or (C, H, W),
            RGB.
        size: width and height to resize to (needs pillow); None keeps the size.

    Returns:
        numpy.ndarray: (3, H, W), BGR, minus the mean color, of ``config.dtype``.
    """
    return prepare_image(image, size, _MEAN)


def _normalize(x):
    return F.local_response_normalization(x, n=5, k=1, alpha=1e-4 / 5)


class GoogLeNet(VisionModel):
    """GoogLeNet, with its two auxiliary classifiers.

    Layers: conv1, pool1, conv2_reduce, conv2, pool2, inception_3a to inception_5b with pool3 and
    pool4 between them, pool5, loss3_fc, prob, loss1_fc2, loss2_fc2.

        >>> L.GoogLeNet(None).count_params()
        13378280

    Args:
        pretrained_model: path of a file of parameters, ``'auto'`` or None; see
            :class:`mpchain.links.model.vision.vision_model.VisionModel`.

    See C. Szegedy et al., Going deeper with convolutions, CVPR 2015.
    """

    branches = {"loss1_fc2": "inception_4a", "loss2_fc2": "inception_4d"}
    mean = _MEAN
    published = PublishedModel(
        "bvlc_googlenet.caffemodel",
        "http://dl.caffe.berkeleyvision.org/bvlc_googlenet.caffemodel",
        "https://github.com/BVLC/caffe/tree/master/models/bvlc_googlenet",
        "405fc5acd08a3bb12de8ee5e23a96bec22f08204",
    )

    def __init__(self, pretrained_model: str | None = "auto") -> None:
        super().__init__()
        # If a file is loaded, its weights replace these initial values.
        is_new = pretrained_model is None
        initialW = LeCunUniform() if is_new else 0
        with self.init_scope():
            self.conv1 = Convolution2D(3, 64, 7, 2, 3, initialW=initialW)
            self.conv2_reduce = Convolution2D(64, 64, 1, initialW=initialW)
            self.conv2 = Convolution2D(64, 192, 3, 1, 1, initialW=initialW)
            for name, channels in _INCEPTIONS.items():
                setattr(self, f"inc{name}", Inception(*channels, None if is_new else 0))
            self.loss3_fc = Linear(1024, 1000, initialW=initialW)
            for branch, channels in (("loss1", 512), ("loss2", 528)):
                setattr(self, f"{branch}_conv", Convolution2D(channels, 128, 1, initialW=initialW))
                setattr(self, f"{branch}_fc1", Linear(2048, 1024, initialW=initialW))
                setattr(self, f"{branch}_fc2", Linear(1024, 1000, initialW=initialW))
        self._load(pretrained_model)

    @property
    def functions(self) -> dict[str, list[Callable[..., Any]]]:
        """The list of functions of each layer, by name."""
        pool = functools.partial(F.max_pooling_2d, ksize=3, stride=2)
        functions = {
            "conv1": [self.conv1, F.relu],
            "pool1": [pool, _normalize],
            "conv2_reduce": [self.conv2_reduce, F.relu],
            "conv2": [self.conv2, F.relu, _normalize],
            "pool2": [pool],
        }
        for name in _INCEPTIONS:
            functions[f"inception_{name}"] = [self[f"inc{name}"]]
            if name in ("3b", "4e"):
                functions[f"pool{name[0]}"] = [pool]
        functions["pool5"] = [functools.partial(F.average_pooling_2d, ksize=7, stride=1)]
        functions["loss3_fc"] = [functools.partial(F.dropout, ratio=0.4), self.loss3_fc]
        functions["prob"] = [F.softmax]
        for branch in ("loss1", "loss2"):
            conv, fc1, fc2 = (self[f"{branch}_{part}"] for part in ("conv", "fc1", "fc2"))
            average = functools.partial(F.average_pooling_2d, ksize=5, stride=3)
            functions[f"{branch}_fc2"] = [average, conv, F.relu, fc1, F.relu, fc2]
        return functions

    def transfer_from_caffe(self, caffe: Chain) -> None:
        """Copies the parameters of a :class:`CaffeFunction` of the same network."""
        copy_layer(self.conv1, caffe, "conv1/7x7_s2")
        copy_layer(self.conv2_reduce, caffe, "conv2/3x3_reduce")
        copy_layer(self.conv2, caffe, "conv2/3x3")
        for name in _INCEPTIONS:
            for part, of_caffe in _OF_CAFFE.items():
                copy_layer(self[f"inc{name}"][part], caffe, f"inception_{name}/{of_caffe}")
        copy_layer(self.loss3_fc, caffe, "loss3/classifier")
        for branch in ("loss1", "loss2"):
            copy_layer(self[f"{branch}_conv"], caffe, f"{branch}/conv")
            copy_layer(self[f"{branch}_fc1"], caffe, f"{branch}/fc")
            copy_layer(self[f"{branch}_fc2"], caffe, f"{branch}/classifier")
