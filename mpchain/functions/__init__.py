"""Functions on variables. The module of each family of functions documents its functions."""

from mpchain import from_pytorch
from mpchain.functions.activation import clipped_relu as clipped_relu
from mpchain.functions.activation import crelu as crelu
from mpchain.functions.activation import elu as elu
from mpchain.functions.activation import gelu as gelu
from mpchain.functions.activation import hard_sigmoid as hard_sigmoid
from mpchain.functions.activation import leaky_relu as leaky_relu
from mpchain.functions.activation import log_softmax as log_softmax
from mpchain.functions.activation import maxout as maxout
from mpchain.functions.activation import mish as mish
from mpchain.functions.activation import prelu as prelu
from mpchain.functions.activation import relu as relu
from mpchain.functions.activation import relu6 as relu6
from mpchain.functions.activation import rrelu as rrelu
from mpchain.functions.activation import selu as selu
from mpchain.functions.activation import sigmoid as sigmoid
from mpchain.functions.activation import silu as silu
from mpchain.functions.activation import softmax as softmax
from mpchain.functions.activation import softplus as softplus
from mpchain.functions.activation import swish as swish
from mpchain.functions.activation import tanh as tanh
from mpchain.functions.arithmetic import absolute as absolute
from mpchain.functions.arithmetic import add as add
from mpchain.functions.arithmetic import bias as bias
from mpchain.functions.arithmetic import identity as identity
from mpchain.functions.arithmetic import linear_interpolate as linear_interpolate
from mpchain.functions.arithmetic import scale as scale
from mpchain.functions.array import broadcast_to as broadcast_to
from mpchain.functions.array import cast as cast
from mpchain.functions.array import reshape as reshape
from mpchain.functions.array import sum_to as sum_to
from mpchain.functions.array import swapaxes as swapaxes
from mpchain.functions.array import transpose as transpose
from mpchain.functions.attention import multi_head_attention as multi_head_attention
from mpchain.functions.attention import scaled_dot_product_attention as scaled_dot_product_attention
from mpchain.functions.connection import bilinear as bilinear
from mpchain.functions.connection import convolution_1d as convolution_1d
from mpchain.functions.connection import convolution_2d as convolution_2d
from mpchain.functions.connection import convolution_3d as convolution_3d
from mpchain.functions.connection import convolution_nd as convolution_nd
from mpchain.functions.connection import deconvolution_1d as deconvolution_1d
from mpchain.functions.connection import deconvolution_2d as deconvolution_2d
from mpchain.functions.connection import deconvolution_3d as deconvolution_3d
from mpchain.functions.connection import deconvolution_nd as deconvolution_nd
from mpchain.functions.connection import depthwise_convolution_2d as depthwise_convolution_2d
from mpchain.functions.connection import dilated_convolution_2d as dilated_convolution_2d
from mpchain.functions.connection import linear as linear
from mpchain.functions.connection import local_convolution_2d as local_convolution_2d
from mpchain.functions.connection import shift as shift
from mpchain.functions.contraction import batch_matmul as batch_matmul
from mpchain.functions.contraction import einsum as einsum
from mpchain.functions.contraction import matmul as matmul
from mpchain.functions.contraction import tensordot as tensordot
from mpchain.functions.cumulative import cumprod as cumprod
from mpchain.functions.cumulative import cumsum as cumsum
from mpchain.functions.declaring import protocol  # this import sets the methods of Variable
from mpchain.functions.decorrelation import (
    decorrelated_batch_normalization as decorrelated_batch_normalization,
)
from mpchain.functions.decorrelation import (
    fixed_decorrelated_batch_normalization as fixed_decorrelated_batch_normalization,
)
from mpchain.functions.deformable import (
    deformable_convolution_2d_sampler as deformable_convolution_2d_sampler,
)
from mpchain.functions.embedding import embed_id as embed_id
from mpchain.functions.embedding import rotary_embedding as rotary_embedding
from mpchain.functions.embedding_loss import black_out as black_out
from mpchain.functions.embedding_loss import contrastive as contrastive
from mpchain.functions.embedding_loss import cross_covariance as cross_covariance
from mpchain.functions.embedding_loss import decov as decov
from mpchain.functions.embedding_loss import (
    discriminative_margin_based_clustering_loss as discriminative_margin_based_clustering_loss,
)
from mpchain.functions.embedding_loss import negative_sampling as negative_sampling
from mpchain.functions.embedding_loss import triplet as triplet
from mpchain.functions.evaluation import accuracy as accuracy
from mpchain.functions.evaluation import binary_accuracy as binary_accuracy
from mpchain.functions.evaluation import classification_summary as classification_summary
from mpchain.functions.evaluation import f1_score as f1_score
from mpchain.functions.evaluation import precision as precision
from mpchain.functions.evaluation import r2_score as r2_score
from mpchain.functions.evaluation import recall as recall
from mpchain.functions.fourier import fft as fft
from mpchain.functions.fourier import ifft as ifft
from mpchain.functions.image import im2col as im2col
from mpchain.functions.image import interpolate as interpolate
from mpchain.functions.image import resize_images as resize_images
from mpchain.functions.image import spatial_transformer_grid as spatial_transformer_grid
from mpchain.functions.image import spatial_transformer_sampler as spatial_transformer_sampler
from mpchain.functions.indexing import as_strided as as_strided
from mpchain.functions.indexing import diagonal as diagonal
from mpchain.functions.indexing import get_item as get_item
from mpchain.functions.indexing import one_hot as one_hot
from mpchain.functions.indexing import permutate as permutate
from mpchain.functions.indexing import scatter_add as scatter_add
from mpchain.functions.indexing import select_item as select_item
from mpchain.functions.indexing import sort as sort
from mpchain.functions.indexing import topk as topk
from mpchain.functions.joining import broadcast as broadcast
from mpchain.functions.joining import concat as concat
from mpchain.functions.joining import dstack as dstack
from mpchain.functions.joining import hstack as hstack
from mpchain.functions.joining import pad_sequence as pad_sequence
from mpchain.functions.joining import separate as separate
from mpchain.functions.joining import split_axis as split_axis
from mpchain.functions.joining import stack as stack
from mpchain.functions.joining import transpose_sequence as transpose_sequence
from mpchain.functions.joining import vstack as vstack
from mpchain.functions.linear_algebra import batch_det as batch_det
from mpchain.functions.linear_algebra import batch_inv as batch_inv
from mpchain.functions.linear_algebra import cholesky as cholesky
from mpchain.functions.linear_algebra import det as det
from mpchain.functions.linear_algebra import inv as inv
from mpchain.functions.loss import focal_loss as focal_loss
from mpchain.functions.loss import hinge as hinge
from mpchain.functions.loss import sigmoid_cross_entropy as sigmoid_cross_entropy
from mpchain.functions.loss import softmax_cross_entropy as softmax_cross_entropy
from mpchain.functions.mathematics import ceil as ceil
from mpchain.functions.mathematics import clip as clip
from mpchain.functions.mathematics import exp as exp
from mpchain.functions.mathematics import expm1 as expm1
from mpchain.functions.mathematics import fix as fix
from mpchain.functions.mathematics import floor as floor
from mpchain.functions.mathematics import fmod as fmod
from mpchain.functions.mathematics import log as log
from mpchain.functions.mathematics import log1p as log1p
from mpchain.functions.mathematics import log2 as log2
from mpchain.functions.mathematics import log10 as log10
from mpchain.functions.mathematics import maximum as maximum
from mpchain.functions.mathematics import minimum as minimum
from mpchain.functions.mathematics import rsqrt as rsqrt
from mpchain.functions.mathematics import sign as sign
from mpchain.functions.mathematics import sqrt as sqrt
from mpchain.functions.mathematics import square as square
from mpchain.functions.mathematics import squared_difference as squared_difference
from mpchain.functions.mathematics import where as where
from mpchain.functions.n_step import n_step_bigru as n_step_bigru
from mpchain.functions.n_step import n_step_bilstm as n_step_bilstm
from mpchain.functions.n_step import n_step_birnn as n_step_birnn
from mpchain.functions.n_step import n_step_gru as n_step_gru
from mpchain.functions.n_step import n_step_lstm as n_step_lstm
from mpchain.functions.n_step import n_step_rnn as n_step_rnn
from mpchain.functions.noise import dropout as dropout
from mpchain.functions.noise import gaussian as gaussian
from mpchain.functions.noise import gumbel_softmax as gumbel_softmax
from mpchain.functions.noise import simplified_dropconnect as simplified_dropconnect
from mpchain.functions.noise import zoneout as zoneout
from mpchain.functions.normalization import batch_normalization as batch_normalization
from mpchain.functions.normalization import batch_renormalization as batch_renormalization
from mpchain.functions.normalization import fixed_batch_normalization as fixed_batch_normalization
from mpchain.functions.normalization import (
    fixed_batch_renormalization as fixed_batch_renormalization,
)
from mpchain.functions.normalization import group_normalization as group_normalization
from mpchain.functions.normalization import instance_normalization as instance_normalization
from mpchain.functions.normalization import layer_normalization as layer_normalization
from mpchain.functions.normalization import (
    local_response_normalization as local_response_normalization,
)
from mpchain.functions.normalization import normalize as normalize
from mpchain.functions.normalization import rms_normalization as rms_normalization
from mpchain.functions.padding import pad as pad
from mpchain.functions.pooling import adaptive_average_pooling_2d as adaptive_average_pooling_2d
from mpchain.functions.pooling import adaptive_average_pooling_nd as adaptive_average_pooling_nd
from mpchain.functions.pooling import adaptive_max_pooling_2d as adaptive_max_pooling_2d
from mpchain.functions.pooling import adaptive_max_pooling_nd as adaptive_max_pooling_nd
from mpchain.functions.pooling import average_pooling_1d as average_pooling_1d
from mpchain.functions.pooling import average_pooling_2d as average_pooling_2d
from mpchain.functions.pooling import average_pooling_3d as average_pooling_3d
from mpchain.functions.pooling import average_pooling_nd as average_pooling_nd
from mpchain.functions.pooling import max_pooling_1d as max_pooling_1d
from mpchain.functions.pooling import max_pooling_2d as max_pooling_2d
from mpchain.functions.pooling import max_pooling_3d as max_pooling_3d
from mpchain.functions.pooling import max_pooling_nd as max_pooling_nd
from mpchain.functions.pooling import spatial_pyramid_pooling_2d as spatial_pyramid_pooling_2d
from mpchain.functions.pooling import unpooling_1d as unpooling_1d
from mpchain.functions.pooling import unpooling_2d as unpooling_2d
from mpchain.functions.pooling import unpooling_3d as unpooling_3d
from mpchain.functions.pooling import unpooling_nd as unpooling_nd
from mpchain.functions.pooling import upsampling_2d as upsampling_2d
from mpchain.functions.rearrangement import copy as copy
from mpchain.functions.rearrangement import depth2space as depth2space
from mpchain.functions.rearrangement import expand_dims as expand_dims
from mpchain.functions.rearrangement import flatten as flatten
from mpchain.functions.rearrangement import flip as flip
from mpchain.functions.rearrangement import fliplr as fliplr
from mpchain.functions.rearrangement import flipud as flipud
from mpchain.functions.rearrangement import moveaxis as moveaxis
from mpchain.functions.rearrangement import pixel_shuffle as pixel_shuffle
from mpchain.functions.rearrangement import pixel_unshuffle as pixel_unshuffle
from mpchain.functions.rearrangement import repeat as repeat
from mpchain.functions.rearrangement import rollaxis as rollaxis
from mpchain.functions.rearrangement import space2depth as space2depth
from mpchain.functions.rearrangement import squeeze as squeeze
from mpchain.functions.rearrangement import tile as tile
from mpchain.functions.recompute import forget as forget
from mpchain.functions.recurrent import lstm as lstm
from mpchain.functions.recurrent import slstm as slstm
from mpchain.functions.recurrent import tree_lstm as tree_lstm
from mpchain.functions.reduction import argmax as argmax
from mpchain.functions.reduction import argmin as argmin
from mpchain.functions.reduction import batch_l2_norm_squared as batch_l2_norm_squared
from mpchain.functions.reduction import logsumexp as logsumexp
from mpchain.functions.reduction import max as max
from mpchain.functions.reduction import mean as mean
from mpchain.functions.reduction import min as min
from mpchain.functions.reduction import prod as prod
from mpchain.functions.reduction import sum as sum
from mpchain.functions.regression_loss import absolute_error as absolute_error
from mpchain.functions.regression_loss import bernoulli_nll as bernoulli_nll
from mpchain.functions.regression_loss import gaussian_kl_divergence as gaussian_kl_divergence
from mpchain.functions.regression_loss import gaussian_nll as gaussian_nll
from mpchain.functions.regression_loss import huber_loss as huber_loss
from mpchain.functions.regression_loss import mean_absolute_error as mean_absolute_error
from mpchain.functions.regression_loss import mean_squared_error as mean_squared_error
from mpchain.functions.regression_loss import smooth_l1_loss as smooth_l1_loss
from mpchain.functions.regression_loss import squared_error as squared_error
from mpchain.functions.roi import roi_average_align_2d as roi_average_align_2d
from mpchain.functions.roi import roi_average_pooling_2d as roi_average_pooling_2d
from mpchain.functions.roi import roi_max_align_2d as roi_max_align_2d
from mpchain.functions.roi import roi_max_pooling_2d as roi_max_pooling_2d
from mpchain.functions.roi import roi_pooling_2d as roi_pooling_2d
from mpchain.functions.sequence_loss import argmax_crf1d as argmax_crf1d
from mpchain.functions.sequence_loss import (
    connectionist_temporal_classification as connectionist_temporal_classification,
)
from mpchain.functions.sequence_loss import crf1d as crf1d
from mpchain.functions.sparse import sparse_matmul as sparse_matmul
from mpchain.functions.special import digamma as digamma
from mpchain.functions.special import erf as erf
from mpchain.functions.special import erfc as erfc
from mpchain.functions.special import erfcinv as erfcinv
from mpchain.functions.special import erfcx as erfcx
from mpchain.functions.special import erfinv as erfinv
from mpchain.functions.special import lgamma as lgamma
from mpchain.functions.special import log_ndtr as log_ndtr
from mpchain.functions.special import ndtr as ndtr
from mpchain.functions.special import ndtri as ndtri
from mpchain.functions.special import polygamma as polygamma
from mpchain.functions.special import zeta as zeta
from mpchain.functions.trigonometric import arccos as arccos
from mpchain.functions.trigonometric import arcsin as arcsin
from mpchain.functions.trigonometric import arctan as arctan
from mpchain.functions.trigonometric import arctan2 as arctan2
from mpchain.functions.trigonometric import arctanh as arctanh
from mpchain.functions.trigonometric import cos as cos
from mpchain.functions.trigonometric import cosh as cosh
from mpchain.functions.trigonometric import sin as sin
from mpchain.functions.trigonometric import sinh as sinh
from mpchain.functions.trigonometric import tan as tan
from mpchain.utils import type_check

average = mean

__all__ = [name for name in dir() if callable(globals()[name])]


def _explain_arguments():
    """Wraps the functions that are not declared, so that their errors name an argument that should
    be an array."""
    for name in __all__:
        function = globals()[name]
        if not hasattr(function, "declaration"):
            globals()[name] = type_check.called_by_users(function)
            globals()[name].__module__ = __name__  # pickle looks the function up in this module


_explain_arguments()

# Type checkers do not see this ``__getattr__``: with it, they would assume that the module has
# every name.
globals()["__getattr__"] = from_pytorch.module_getattr(__name__)
