"""The links that come with mpchain. Each module of this package holds a family of links."""

from mpchain import annexes, from_pytorch
from mpchain.links.activation import Maxout as Maxout
from mpchain.links.activation import PReLU as PReLU
from mpchain.links.activation import Swish as Swish
from mpchain.links.adapters import LoRA as LoRA
from mpchain.links.arithmetic import Bias as Bias
from mpchain.links.arithmetic import Parameter as Parameter
from mpchain.links.arithmetic import Scale as Scale
from mpchain.links.attention import MultiHeadAttention as MultiHeadAttention
from mpchain.links.attention import TransformerDecoderLayer as TransformerDecoderLayer
from mpchain.links.attention import TransformerEncoderLayer as TransformerEncoderLayer
from mpchain.links.average import ExponentialMovingAverage as ExponentialMovingAverage
from mpchain.links.blocks import Highway as Highway
from mpchain.links.blocks import Inception as Inception
from mpchain.links.blocks import InceptionBN as InceptionBN
from mpchain.links.blocks import MLPConvolution2D as MLPConvolution2D
from mpchain.links.connection import Bilinear as Bilinear
from mpchain.links.connection import Linear as Linear
from mpchain.links.convolution import Convolution1D as Convolution1D
from mpchain.links.convolution import Convolution2D as Convolution2D
from mpchain.links.convolution import Convolution3D as Convolution3D
from mpchain.links.convolution import ConvolutionND as ConvolutionND
from mpchain.links.convolution import Deconvolution1D as Deconvolution1D
from mpchain.links.convolution import Deconvolution2D as Deconvolution2D
from mpchain.links.convolution import Deconvolution3D as Deconvolution3D
from mpchain.links.convolution import DeconvolutionND as DeconvolutionND
from mpchain.links.convolution import DeformableConvolution2D as DeformableConvolution2D
from mpchain.links.convolution import DepthwiseConvolution2D as DepthwiseConvolution2D
from mpchain.links.convolution import DilatedConvolution2D as DilatedConvolution2D
from mpchain.links.convolution import LocalConvolution2D as LocalConvolution2D
from mpchain.links.embedding import EmbedID as EmbedID
from mpchain.links.loss import BinaryHierarchicalSoftmax as BinaryHierarchicalSoftmax
from mpchain.links.loss import BlackOut as BlackOut
from mpchain.links.loss import CRF1d as CRF1d
from mpchain.links.loss import NegativeSampling as NegativeSampling
from mpchain.links.model import Classifier as Classifier
from mpchain.links.model.vision.googlenet import GoogLeNet as GoogLeNet
from mpchain.links.model.vision.resnet import ResNet50Layers as ResNet50Layers
from mpchain.links.model.vision.resnet import ResNet101Layers as ResNet101Layers
from mpchain.links.model.vision.resnet import ResNet152Layers as ResNet152Layers
from mpchain.links.model.vision.resnet import ResNetLayers as ResNetLayers
from mpchain.links.model.vision.vgg import VGG16Layers as VGG16Layers
from mpchain.links.model.vision.vgg import VGG19Layers as VGG19Layers
from mpchain.links.model.vision.vgg import VGGLayers as VGGLayers
from mpchain.links.n_step import NStepBiGRU as NStepBiGRU
from mpchain.links.n_step import NStepBiLSTM as NStepBiLSTM
from mpchain.links.n_step import NStepBiRNNReLU as NStepBiRNNReLU
from mpchain.links.n_step import NStepBiRNNTanh as NStepBiRNNTanh
from mpchain.links.n_step import NStepGRU as NStepGRU
from mpchain.links.n_step import NStepLSTM as NStepLSTM
from mpchain.links.n_step import NStepRNNReLU as NStepRNNReLU
from mpchain.links.n_step import NStepRNNTanh as NStepRNNTanh
from mpchain.links.noise import Dropout as Dropout
from mpchain.links.noise import SimplifiedDropconnect as SimplifiedDropconnect
from mpchain.links.normalization import BatchNormalization as BatchNormalization
from mpchain.links.normalization import BatchRenormalization as BatchRenormalization
from mpchain.links.normalization import (
    DecorrelatedBatchNormalization as DecorrelatedBatchNormalization,
)
from mpchain.links.normalization import GroupNormalization as GroupNormalization
from mpchain.links.normalization import InstanceNormalization as InstanceNormalization
from mpchain.links.normalization import LayerNormalization as LayerNormalization
from mpchain.links.normalization import RMSNormalization as RMSNormalization
from mpchain.links.recurrent import GRU as GRU
from mpchain.links.recurrent import LSTM as LSTM
from mpchain.links.recurrent import StatefulGRU as StatefulGRU
from mpchain.links.recurrent import StatefulMGU as StatefulMGU
from mpchain.links.recurrent import StatefulPeepholeLSTM as StatefulPeepholeLSTM
from mpchain.links.recurrent import StatefulZoneoutLSTM as StatefulZoneoutLSTM
from mpchain.links.recurrent import StatelessGRU as StatelessGRU
from mpchain.links.recurrent import StatelessLSTM as StatelessLSTM
from mpchain.links.recurrent import StatelessMGU as StatelessMGU
from mpchain.links.tree import ChildSumTreeLSTM as ChildSumTreeLSTM
from mpchain.links.tree import NaryTreeLSTM as NaryTreeLSTM

# Type checkers do not see this ``__getattr__``: with it, they would assume that the module has
# every name.
globals()["__getattr__"] = annexes.later(
    __name__, {"interop": "links.caffe"}, from_pytorch.module_getattr(__name__)
)
