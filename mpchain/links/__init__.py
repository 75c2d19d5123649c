"""Links with parameters of their own: the family file a name is imported from says which kind."""

from mpchain.links.activation import Maxout, PReLU, Swish
from mpchain.links.adapters import LoRA
from mpchain.links.arithmetic import Bias, Parameter, Scale
from mpchain.links.attention import (
    MultiHeadAttention,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from mpchain.links.average import ExponentialMovingAverage
from mpchain.links.blocks import Highway, Inception, InceptionBN, MLPConvolution2D
from mpchain.links.connection import Bilinear, Linear
from mpchain.links.convolution import (
    Convolution1D,
    Convolution2D,
    Convolution3D,
    ConvolutionND,
    Deconvolution1D,
    Deconvolution2D,
    Deconvolution3D,
    DeconvolutionND,
    DeformableConvolution2D,
    DepthwiseConvolution2D,
    DilatedConvolution2D,
    LocalConvolution2D,
)
from mpchain.links.embedding import EmbedID
from mpchain.links.loss import BinaryHierarchicalSoftmax, BlackOut, CRF1d, NegativeSampling
from mpchain.links.model import Classifier
from mpchain.links.model.vision.googlenet import GoogLeNet
from mpchain.links.model.vision.resnet import (
    ResNet50Layers,
    ResNet101Layers,
    ResNet152Layers,
    ResNetLayers,
)
from mpchain.links.model.vision.vgg import VGG16Layers, VGG19Layers, VGGLayers
from mpchain.links.n_step import (
    NStepBiGRU,
    NStepBiLSTM,
    NStepBiRNNReLU,
    NStepBiRNNTanh,
    NStepGRU,
    NStepLSTM,
    NStepRNNReLU,
    NStepRNNTanh,
)
from mpchain.links.noise import Dropout, SimplifiedDropconnect
from mpchain.links.normalization import (
    BatchNormalization,
    BatchRenormalization,
    DecorrelatedBatchNormalization,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    RMSNormalization,
)
from mpchain.links.recurrent import (
    GRU,
    LSTM,
    StatefulGRU,
    StatefulMGU,
    StatefulPeepholeLSTM,
    StatefulZoneoutLSTM,
    StatelessGRU,
    StatelessLSTM,
    StatelessMGU,
)
from mpchain.links.tree import ChildSumTreeLSTM, NaryTreeLSTM

__all__ = [
    "GRU",
    "LSTM",
    "BatchNormalization",
    "BatchRenormalization",
    "Bias",
    "Bilinear",
    "BinaryHierarchicalSoftmax",
    "BlackOut",
    "CRF1d",
    "ChildSumTreeLSTM",
    "Classifier",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "ConvolutionND",
    "Deconvolution1D",
    "Deconvolution2D",
    "Deconvolution3D",
    "DeconvolutionND",
    "DecorrelatedBatchNormalization",
    "DeformableConvolution2D",
    "DepthwiseConvolution2D",
    "DilatedConvolution2D",
    "Dropout",
    "EmbedID",
    "ExponentialMovingAverage",
    "GoogLeNet",
    "GroupNormalization",
    "Highway",
    "Inception",
    "InceptionBN",
    "InstanceNormalization",
    "LayerNormalization",
    "Linear",
    "LoRA",
    "LocalConvolution2D",
    "MLPConvolution2D",
    "Maxout",
    "MultiHeadAttention",
    "NStepBiGRU",
    "NStepBiLSTM",
    "NStepBiRNNReLU",
    "NStepBiRNNTanh",
    "NStepGRU",
    "NStepLSTM",
    "NStepRNNReLU",
    "NStepRNNTanh",
    "NaryTreeLSTM",
    "NegativeSampling",
    "PReLU",
    "Parameter",
    "RMSNormalization",
    "ResNet50Layers",
    "ResNet101Layers",
    "ResNet152Layers",
    "ResNetLayers",
    "Scale",
    "SimplifiedDropconnect",
    "StatefulGRU",
    "StatefulMGU",
    "StatefulPeepholeLSTM",
    "StatefulZoneoutLSTM",
    "StatelessGRU",
    "StatelessLSTM",
    "StatelessMGU",
    "Swish",
    "TransformerDecoderLayer",
    "TransformerEncoderLayer",
    "VGG16Layers",
    "VGG19Layers",
    "VGGLayers",
]
