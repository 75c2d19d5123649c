"""Functions on variables: the family file that a name is imported from says what it means."""

from mpchain.functions import protocol
from mpchain.functions.activation import (
    clipped_relu,
    crelu,
    elu,
    gelu,
    hard_sigmoid,
    leaky_relu,
    log_softmax,
    maxout,
    mish,
    prelu,
    relu,
    relu6,
    rrelu,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    swish,
    tanh,
)
from mpchain.functions.arithmetic import absolute, add, bias, identity, linear_interpolate, scale
from mpchain.functions.array import (
    broadcast_to,
    cast,
    concat,
    get_item,
    mean,
    reshape,
    split_axis,
    sum,
    sum_to,
    swapaxes,
    transpose,
)
from mpchain.functions.attention import multi_head_attention, scaled_dot_product_attention
from mpchain.functions.connection import (
    bilinear,
    convolution_1d,
    convolution_2d,
    convolution_3d,
    convolution_nd,
    deconvolution_1d,
    deconvolution_2d,
    deconvolution_3d,
    deconvolution_nd,
    depthwise_convolution_2d,
    dilated_convolution_2d,
    linear,
    local_convolution_2d,
    shift,
)
from mpchain.functions.contraction import batch_matmul, einsum, matmul, tensordot
from mpchain.functions.cumulative import cumprod, cumsum
from mpchain.functions.decorrelation import (
    decorrelated_batch_normalization,
    fixed_decorrelated_batch_normalization,
)
from mpchain.functions.deformable import deformable_convolution_2d_sampler
from mpchain.functions.embedding import embed_id, rotary_embedding
from mpchain.functions.embedding_loss import (
    black_out,
    contrastive,
    cross_covariance,
    decov,
    discriminative_margin_based_clustering_loss,
    negative_sampling,
    triplet,
)
from mpchain.functions.evaluation import (
    accuracy,
    binary_accuracy,
    classification_summary,
    f1_score,
    precision,
    r2_score,
    recall,
)
from mpchain.functions.fourier import fft, ifft
from mpchain.functions.image import (
    im2col,
    interpolate,
    resize_images,
    spatial_transformer_grid,
    spatial_transformer_sampler,
)
from mpchain.functions.indexing import (
    as_strided,
    diagonal,
    one_hot,
    permutate,
    scatter_add,
    select_item,
    sort,
    topk,
)
from mpchain.functions.joining import (
    broadcast,
    dstack,
    hstack,
    pad_sequence,
    separate,
    stack,
    transpose_sequence,
    vstack,
)
from mpchain.functions.linear_algebra import batch_det, batch_inv, cholesky, det, inv
from mpchain.functions.loss import (
    focal_loss,
    hinge,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)
from mpchain.functions.mathematics import (
    ceil,
    clip,
    exp,
    expm1,
    fix,
    floor,
    fmod,
    log,
    log1p,
    log2,
    log10,
    maximum,
    minimum,
    rsqrt,
    sign,
    sqrt,
    square,
    squared_difference,
    where,
)
from mpchain.functions.noise import (
    dropout,
    gaussian,
    gumbel_softmax,
    simplified_dropconnect,
    zoneout,
)
from mpchain.functions.normalization import (
    batch_normalization,
    batch_renormalization,
    fixed_batch_normalization,
    fixed_batch_renormalization,
    group_normalization,
    instance_normalization,
    layer_normalization,
    local_response_normalization,
    normalize,
    rms_normalization,
)
from mpchain.functions.padding import (
    pad,
)
from mpchain.functions.pooling import (
    adaptive_average_pooling_2d,
    adaptive_average_pooling_nd,
    adaptive_max_pooling_2d,
    adaptive_max_pooling_nd,
    average_pooling_1d,
    average_pooling_2d,
    average_pooling_3d,
    average_pooling_nd,
    max_pooling_1d,
    max_pooling_2d,
    max_pooling_3d,
    max_pooling_nd,
    spatial_pyramid_pooling_2d,
    unpooling_1d,
    unpooling_2d,
    unpooling_3d,
    unpooling_nd,
    upsampling_2d,
)
from mpchain.functions.rearrangement import (
    copy,
    depth2space,
    expand_dims,
    flatten,
    flip,
    fliplr,
    flipud,
    moveaxis,
    pixel_shuffle,
    pixel_unshuffle,
    repeat,
    rollaxis,
    space2depth,
    squeeze,
    tile,
)
from mpchain.functions.recompute import forget
from mpchain.functions.recurrent import (
    lstm,
    n_step_bigru,
    n_step_bilstm,
    n_step_birnn,
    n_step_gru,
    n_step_lstm,
    n_step_rnn,
    slstm,
    tree_lstm,
)
from mpchain.functions.reduction import (
    argmax,
    argmin,
    batch_l2_norm_squared,
    logsumexp,
    max,
    min,
    prod,
)
from mpchain.functions.regression_loss import (
    absolute_error,
    bernoulli_nll,
    gaussian_kl_divergence,
    gaussian_nll,
    huber_loss,
    mean_absolute_error,
    mean_squared_error,
    smooth_l1_loss,
    squared_error,
)
from mpchain.functions.roi import (
    roi_average_align_2d,
    roi_average_pooling_2d,
    roi_max_align_2d,
    roi_max_pooling_2d,
    roi_pooling_2d,
)
from mpchain.functions.sequence_loss import (
    argmax_crf1d,
    connectionist_temporal_classification,
    crf1d,
)
from mpchain.functions.sparse import sparse_matmul
from mpchain.functions.special import (
    digamma,
    erf,
    erfc,
    erfcinv,
    erfcx,
    erfinv,
    lgamma,
    log_ndtr,
    ndtr,
    ndtri,
    polygamma,
    zeta,
)
from mpchain.functions.trigonometric import (
    arccos,
    arcsin,
    arctan,
    arctan2,
    arctanh,
    cos,
    cosh,
    sin,
    sinh,
    tan,
)
from mpchain.utils import type_check

average = mean
protocol.install()

__all__ = [name for name in dir() if callable(globals()[name])]


def _explain_arguments():
    """Lets functions that are written in terms of others name a wrong argument."""
    for name in __all__:
        function = globals()[name]
        if not hasattr(function, "declaration"):
            globals()[name] = type_check.explaining_arguments(function)
            globals()[name].__module__ = __name__  # where pickle finds it


_explain_arguments()
