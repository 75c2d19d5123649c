"""Tests that each public name in the list exists.

The list omits attributes that only instances have, NNabla's own names (mpchain has their semantics
under Chainer's names), ONNX export, and names that mpchain leaves out on purpose, such as
static_graph and those of Theano.
"""

import importlib

import pytest

from mpchain.annexes import ANNEXES

# Each heading is a module or class, with its annex if it belongs to one. Its names follow.
PUBLIC = """
# 1. Top level
mpchain:
    backward grad no_backprop_mode force_backprop_mode using_config config global_config
    as_variable as_array get_dtype mixed16 get_array_types get_cpu_array_types
    is_arrays_compatible get_device using_device get_array_module DeviceResident is_debug
    set_debug DebugMode print_runtime_info get_function_hooks get_compute_mode should_use_cudnn
    should_use_cudnn_tensor_core Function FunctionAdapter FunctionNode FunctionHook Fallback
    Link Chain ChainList Sequential LinkHook Parameter Variable Initializer Optimizer
    GradientMethod UpdateRule AbstractSerializer Serializer Deserializer Reporter report
    report_scope get_current_reporter Summary DictSummary Distribution kl_divergence
    cross_entropy register_kl disable_experimental_feature_warning __version__ CommunicatorBase
    create_communicator create_multi_node_optimizer create_multi_node_evaluator
    create_multi_node_checkpointer scatter_dataset scatter_index DataSizeError
    MultiNodeChainList elementwise differentiable keep_freed_memory run
mpchain of profiling:
    profile
mpchain.device_resident:
    DeviceResident DeviceResidentsVisitor DeviceResidentsVisitor.visit_device_resident
    DeviceResidentsVisitor.visit_array DeviceResidentsVisitor.visit_variable
mpchain.variable:
    VariableNode
mpchain.optimizer:
    Hyperparameter HyperparameterProxy
mpchain.warnings:
    PerformanceWarning
# 2. Core classes
mpchain.Variable:
    array data grad grad_var shape ndim size dtype rank name label creator creator_node node
    requires_grad device xp T backward cleargrad zerograd addgrad copydata set_creator
    set_creator_node unchain unchain_backward retain_data reshape transpose mean item summary
    debug_print to_cpu to_gpu to_device to_intel64 to_chx from_chx layout as_layout raw_array
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__
    __rfloordiv__ __pow__ __rpow__ __matmul__ __rmatmul__ __neg__ __pos__ __abs__ __getitem__
    __len__ __bool__ __array_priority__ __copy__ __reduce__
mpchain.Parameter:
    initialize is_initialized update update_rule cleargrad zerograd to_device
mpchain.variable.VariableNode:
    data grad grad_var label rank requires_grad creator creator_node get_variable
    get_variable_or_none set_creator set_creator_node unchain retain_data
mpchain.FunctionNode:
    apply forward forward_cpu forward_gpu backward backward_accumulate retain_inputs
    retain_outputs get_retained_inputs get_retained_outputs output_data check_type_forward
    check_layout_forward unchain add_hook delete_hook local_function_hooks label inputs outputs
    rank stack lazy_grad_sum is_elementwise input_layouts output_layouts
mpchain.Function:
    __call__ forward forward_cpu forward_gpu backward backward_cpu backward_gpu retain_inputs
    retain_outputs check_type_forward add_hook delete_hook node
mpchain.Link:
    init_scope within_init_scope add_param add_persistent register_persistent __call__ params
    namedparams links namedlinks children count_params printable_specs copy copyparams repeat
    from_params cleargrads zerograds addgrads enable_update disable_update update_enabled
    serialize add_hook delete_hook local_link_hooks device_resident_accept device xp to_cpu
    to_gpu to_device to_intel64 to_chx from_chx
mpchain.Chain:
    add_link __getitem__
mpchain.ChainList:
    add_link insert __getitem__ __len__ append
mpchain.Sequential:
    forward append extend insert remove remove_by_layer_type pop clear index count
    count_by_layer_type copy copyparams flatten repeat __add__
mpchain.FunctionHook:
    name added deleted forward_preprocess forward_postprocess backward_preprocess
    backward_postprocess __enter__ __exit__
mpchain.LinkHook:
    added deleted forward_preprocess forward_postprocess __enter__ __exit__
mpchain.Optimizer:
    target t epoch setup update new_epoch use_auto_new_epoch add_hook remove_hook call_hooks
    serialize loss_scaling set_loss_scale check_nan_in_grads is_safe_to_update update_loss_scale
mpchain.GradientMethod:
    create_update_rule reallocate_cleared_grads use_cleargrads use_fp32_update
mpchain.UpdateRule:
    update update_core update_core_cpu update_core_gpu init_state add_hook remove_hook serialize
    use_fp32_update is_elementwise
mpchain.optimizer.Hyperparameter:
    get_dict parent
mpchain.Reporter:
    add_observer add_observers scope report __enter__ __exit__
mpchain.Summary:
    add compute_mean make_statistics serialize
mpchain.DictSummary:
    add compute_mean make_statistics serialize
mpchain.Distribution:
    batch_shape event_shape support params mean mode variance stddev covariance entropy xp cdf
    icdf log_cdf log_prob prob log_survival_function survival_function perplexity sample
    sample_n
mpchain.Serializer:
    save __getitem__ __call__
mpchain.Deserializer:
    load __getitem__ __call__
# 3. Arithmetic functions
mpchain.functions:
    add
# 3. Activation functions
mpchain.functions:
    clipped_relu crelu elu leaky_relu log_softmax lstm maxout prelu rrelu relu6 selu slstm
    softmax softplus swish tree_lstm hard_sigmoid relu sigmoid tanh
# 3. Array manipulations
mpchain.functions:
    as_strided broadcast broadcast_to cast concat copy depth2space diagonal dstack expand_dims
    flip fliplr flipud get_item hstack im2col moveaxis pad pad_sequence permutate repeat reshape
    resize_images rollaxis scatter_add select_item separate space2depth spatial_transformer_grid
    spatial_transformer_sampler split_axis squeeze stack swapaxes tile transpose
    transpose_sequence vstack where flatten
# 3. Neural network connections
mpchain.functions:
    bilinear convolution_1d convolution_2d convolution_3d convolution_nd deconvolution_1d
    deconvolution_2d deconvolution_3d deconvolution_nd depthwise_convolution_2d
    deformable_convolution_2d_sampler dilated_convolution_2d embed_id linear
    local_convolution_2d n_step_bigru n_step_bilstm n_step_birnn n_step_gru n_step_lstm
    n_step_rnn shift
# 3. Evaluation functions
mpchain.functions:
    accuracy binary_accuracy classification_summary f1_score precision r2_score recall
# 3. Loss functions
mpchain.functions:
    absolute_error bernoulli_nll black_out connectionist_temporal_classification contrastive
    crf1d argmax_crf1d cross_covariance decov discriminative_margin_based_clustering_loss
    gaussian_kl_divergence gaussian_nll hinge huber_loss mean_absolute_error mean_squared_error
    negative_sampling sigmoid_cross_entropy softmax_cross_entropy squared_error triplet
# 3. Mathematical functions
mpchain.functions:
    arctan2 argmax argmin average batch_inv batch_matmul bias cholesky clip cumprod cumsum det
    batch_det einsum fmod identity inv linear_interpolate logsumexp matmul max maximum mean min
    minimum prod polygamma scale sparse_matmul squared_difference sum sum_to tensordot zeta
    absolute arccos arcsin arctan arctanh batch_l2_norm_squared cos cosh digamma erf erfc
    erfcinv erfcx erfinv exp expm1 fft ifft lgamma log log10 log1p log2 log_ndtr ndtr ndtri
    rsqrt sin sinh sqrt square tan ceil fix floor sign
# 3. Noise injections
mpchain.functions:
    dropout gaussian gumbel_softmax simplified_dropconnect zoneout
# 3. Normalization functions
mpchain.functions:
    batch_normalization batch_renormalization decorrelated_batch_normalization
    fixed_batch_normalization fixed_batch_renormalization fixed_decorrelated_batch_normalization
    group_normalization layer_normalization local_response_normalization normalize
# 3. Spatial pooling
mpchain.functions:
    average_pooling_1d average_pooling_2d average_pooling_3d average_pooling_nd max_pooling_1d
    max_pooling_2d max_pooling_3d max_pooling_nd roi_average_align_2d roi_average_pooling_2d
    roi_max_align_2d roi_max_pooling_2d roi_pooling_2d spatial_pyramid_pooling_2d unpooling_1d
    unpooling_2d unpooling_3d unpooling_nd upsampling_2d
# 3. Utility functions
mpchain.functions:
    forget
# 4. Links
mpchain.links:
    Bias Scale Parameter Bilinear Linear Convolution1D Convolution2D Convolution3D ConvolutionND
    Deconvolution1D Deconvolution2D Deconvolution3D DeconvolutionND DepthwiseConvolution2D
    DilatedConvolution2D DeformableConvolution2D LocalConvolution2D MLPConvolution2D EmbedID
    Highway Inception InceptionBN Maxout PReLU Swish SimplifiedDropconnect LSTM StatelessLSTM
    GRU StatefulGRU StatelessGRU StatefulMGU StatelessMGU StatefulPeepholeLSTM
    StatefulZoneoutLSTM ChildSumTreeLSTM NaryTreeLSTM NStepLSTM NStepBiLSTM NStepGRU NStepBiGRU
    NStepRNNTanh NStepRNNReLU NStepBiRNNTanh NStepBiRNNReLU BatchNormalization
    BatchRenormalization DecorrelatedBatchNormalization GroupNormalization LayerNormalization
    BinaryHierarchicalSoftmax BlackOut NegativeSampling CRF1d Classifier VGG16Layers VGG19Layers
    VGGLayers GoogLeNet ResNet50Layers ResNet101Layers ResNet152Layers ResNetLayers
    Convolution2D.from_params EmbedID.from_params LSTM.reset_state LSTM.set_state
    StatefulGRU.reset_state StatefulGRU.set_state BatchNormalization.start_finetuning
    BinaryHierarchicalSoftmax.create_huffman_tree CRF1d.argmax VGG16Layers.extract
    VGG16Layers.predict VGG16Layers.forward VGG16Layers.functions VGG16Layers.available_layers
    VGG16Layers.convert_caffemodel_to_npz model.vision.vgg.prepare
    model.vision.googlenet.prepare model.vision.resnet.prepare model.vision.resnet.BuildingBlock
    model.vision.resnet.BottleneckA model.vision.resnet.BottleneckB
# 5. Distributions and initializers
mpchain.distributions:
    Bernoulli Beta Categorical Cauchy Chisquare Dirichlet Exponential Gamma Geometric Gumbel
    Independent Laplace LogNormal MultivariateNormal Normal OneHotCategorical Pareto Poisson
    Uniform
mpchain.initializers:
    Constant Zero One NaN Identity Normal LeCunNormal GlorotNormal HeNormal Uniform LeCunUniform
    GlorotUniform HeUniform Orthogonal UpsamplingDeconvFilter DownsamplingConvFilter
    generate_array
mpchain.initializers.initializer:
    get_fans
mpchain.Initializer:
    __call__
# 6. Optimizers
mpchain.optimizers:
    SGD MomentumSGD CorrectedMomentumSGD NesterovAG AdaDelta AdaGrad SMORMS3 MSVAG RMSprop
    RMSpropGraves Adam AdamW AMSGrad AdaBound AMSBound LBFGS Adam.lr SGDRule MomentumSGDRule
    CorrectedMomentumSGDRule NesterovAGRule AdaDeltaRule AdaGradRule SMORMS3Rule MSVAGRule
    RMSpropRule RMSpropGravesRule AdamRule
mpchain.profiling of profiling:
    profile Profile Profile.rows Profile.print_table Profile.save Profile.span Row rows print_table
mpchain.metrics of metrics:
    Meter Meter.add Meter.compute Meter.reset Metric MetricsEvaluator accuracy auc bleu
    confusion_matrix perplexity precision_recall_f1 top_k
mpchain.transforms of transforms:
    functional_call ggn grad hessian hvp jacobian jvp linearize parameters ravel value_and_grad vjp
mpchain.datasets.transforms:
    Compose Resize CenterCrop RandomCrop RandomResizedCrop RandomFlip RandomErasing ColorJitter
    Normalize
mpchain.optimizer_hooks:
    WeightDecay Lasso GradientHardClipping GradientNoise GradientLARS GradientClipping
    WeightDecay.name WeightDecay.call_for_each_param WeightDecay.timing Lasso.name
    Lasso.call_for_each_param Lasso.timing GradientHardClipping.name
    GradientHardClipping.call_for_each_param GradientHardClipping.timing GradientNoise.name
    GradientNoise.call_for_each_param GradientNoise.timing GradientLARS.name
    GradientLARS.call_for_each_param GradientLARS.timing GradientClipping.name
    GradientClipping.call_for_each_param GradientClipping.timing
# 7. Training
mpchain.training:
    Trainer Trainer.extend Trainer.get_extension Trainer.run Trainer.serialize
    Trainer.elapsed_time Trainer.is_before_training Extension Extension.trigger
    Extension.priority Extension.name Extension.default_name Extension.__call__
    Extension.initialize Extension.finalize Extension.on_error Extension.serialize
    make_extension PRIORITY_WRITER PRIORITY_EDITOR PRIORITY_READER Updater
    Updater.connect_trainer Updater.update Updater.finalize Updater.get_optimizer
    Updater.get_all_optimizers Updater.serialize StandardUpdater ParallelUpdater get_trigger
    util.get_trigger IntervalTrigger
mpchain.training.updaters:
    StandardUpdater StandardUpdater.epoch StandardUpdater.epoch_detail
    StandardUpdater.previous_epoch_detail StandardUpdater.is_new_epoch
    StandardUpdater.get_iterator StandardUpdater.update_core ParallelUpdater
    MultiprocessParallelUpdater MultiprocessParallelUpdater.available
    MultiprocessParallelUpdater.setup_workers
mpchain.training.triggers:
    IntervalTrigger ManualScheduleTrigger OnceTrigger TimeTrigger BestValueTrigger
    MaxValueTrigger MinValueTrigger EarlyStoppingTrigger
    EarlyStoppingTrigger.get_training_length
mpchain.training.extensions:
    Evaluator Evaluator.default_name Evaluator.evaluate Evaluator.get_iterator
    Evaluator.get_all_iterators Evaluator.get_target Evaluator.get_all_targets snapshot
    snapshot_object snapshot_writers.Writer snapshot_writers.SimpleWriter
    snapshot_writers.StandardWriter snapshot_writers.ThreadWriter snapshot_writers.ProcessWriter
    snapshot_writers.QueueWriter snapshot_writers.ThreadQueueWriter
    snapshot_writers.ProcessQueueWriter LogReport LogReport.log PrintReport ProgressBar
    PlotReport PlotReport.available VariableStatisticsPlot ParameterStatistics
    ParameterStatistics.register_statistics MicroAverage FailOnNonNumber observe_lr
    observe_value DumpGraph dump_graph unchain_variables ExponentialShift InverseShift
    LinearShift MultistepShift PolynomialShift StepShift WarmupShift
# 8. Data
mpchain.dataset:
    DatasetMixin DatasetMixin.__getitem__ DatasetMixin.__len__ DatasetMixin.get_example Iterator
    Iterator.__next__ Iterator.next Iterator.finalize Iterator.serialize Iterator.__enter__
    Converter converter concat_examples ConcatWithAsyncTransfer to_device TabularDataset
    TabularDataset.keys TabularDataset.mode TabularDataset.slice TabularDataset.fetch
    TabularDataset.convert TabularDataset.astuple TabularDataset.asdict TabularDataset.concat
    TabularDataset.join TabularDataset.transform TabularDataset.transform_batch
    TabularDataset.with_converter TabularDataset.get_examples TabularDataset.get_example
    tabular.DelegateDataset tabular.from_data get_dataset_root set_dataset_root
    get_dataset_directory cached_download cache_or_load_file
mpchain.datasets:
    AugmentedDataset ImageFolderDataset TupleDataset DictDataset ConcatenatedDataset SubDataset
    TransformDataset split_dataset
    split_dataset_random split_dataset_n split_dataset_n_random get_cross_validation_datasets
    get_cross_validation_datasets_random ImageDataset ZippedImageDataset MultiZippedImageDataset
    LabeledImageDataset LabeledZippedImageDataset TextDataset PickleDataset PickleDatasetWriter
    PickleDatasetWriter.write PickleDatasetWriter.flush PickleDatasetWriter.close
    open_pickle_dataset open_pickle_dataset_writer get_mnist get_kuzushiji_mnist
    get_fashion_mnist get_kuzushiji_mnist_labels get_fashion_mnist_labels get_cifar10
    get_cifar100 get_svhn get_ptb_words get_ptb_words_vocabulary
mpchain.iterators:
    SerialIterator SerialIterator.reset SerialIterator.repeat MultithreadIterator
    MultiprocessIterator MultiprocessIterator.TimeoutWarning DaliIterator OrderSampler
    OrderSampler.__call__ ShuffleOrderSampler
# 9. Serializers
mpchain.serializers:
    save_npz load_npz DictionarySerializer NpzDeserializer save_hdf5 load_hdf5 HDF5Serializer
    HDF5Deserializer
# 10. Hooks
mpchain.function_hooks:
    TimerHook TimerHook.total_time TimerHook.summary TimerHook.print_report
    CupyMemoryProfileHook CupyMemoryProfileHook.total_used_bytes
    CupyMemoryProfileHook.total_acquired_bytes CupyMemoryProfileHook.summary
    CupyMemoryProfileHook.print_report CUDAProfileHook PrintHook
mpchain.link_hooks:
    SpectralNormalization WeightStandardization TimerHook
# 11. Devices and backends
mpchain.backend:
    Device Device.xp Device.name Device.supported_array_types Device.use Device.create_context
    Device.send Device.is_array_supported Device.__enter__ CpuDevice GpuDevice
    GpuDevice.from_device_id GpuDevice.from_array Intel64Device ChainerxDevice get_device
    get_device_from_array get_array_module copyto to_chx from_chx
mpchain:
    cuda
mpchain.backends.cuda:
    available cudnn_enabled check_cuda_available cupy ndarray Device Stream Event DummyDevice
    get_device get_device_from_id get_device_from_array to_gpu to_cpu copy get_array_module
    memoize clear_memo fuse elementwise reduce raw get_max_workspace_size set_max_workspace_size
# 12. Configuration
mpchain.config:
    debug train enable_backprop type_check dtype keep_graph_on_report lazy_grad_sum
    warn_nondeterministic use_cudnn use_cudnn_tensor_core cudnn_deterministic
    cudnn_fast_batch_normalization autotune use_ideep use_static_graph schedule_func
    compute_mode in_recomputing show
mpchain.configuration:
    GlobalConfig LocalConfig
# 13. Utilities
mpchain.utils:
    get_conv_outsize get_deconv_outsize force_array force_type tempdir size_of_shape sum_to
    experimental nondeterministic WalkerAlias WalkerAlias.sample CooMatrix CooMatrix.to_dense
    to_coo get_order conv.im2col_cpu conv.im2col_gpu conv.im2col conv.col2im_cpu conv.col2im_gpu
    conv.col2im conv_nd.as_tuple conv_nd.im2col_nd conv_nd.col2im_nd argument.parse_kwargs
    argument.check_unexpected_kwargs argument.assert_kwargs_empty imgproc.oversample precision
    enable_final final type_check.TypeInfo type_check.TypeInfoTuple type_check.Expr
    type_check.Variable type_check.expect type_check.eval type_check.InvalidType
    type_check.make_variable type_check.same_types type_check.prod
    type_check.expect_broadcast_shapes type_check.get_types
# 13. Gradient checks, testing, graph
mpchain.gradient_check:
    numerical_grad check_backward check_double_backward NondifferentiableError assert_allclose
mpchain.testing:
    FunctionTestCase LinkTestCase LinkInitializersTestCase InitializerArgument FunctionTestError
    LinkTestError unary_math_function_unittest distribution_unittest parameterize
    parameterize_pytest from_pytest_parameterize product product_dict inject_backend_tests
    BackendConfig fix_random generate_seed with_requires without_requires patch assert_allclose
    assert_warns generate_matrix run_module attr.gpu attr.multi_gpu attr.cudnn attr.ideep
    attr.slow attr.chainerx condition.repeat_with_success_at_least condition.repeat
    condition.retry save_and_load save_and_load_npz save_and_load_hdf5
    get_trainer_with_mock_updater
mpchain.computational_graph:
    build_computational_graph ComputationalGraph ComputationalGraph.dump
# 13. Export
mpchain.links of interop:
    caffe.CaffeFunction
mpchain.exporters of interop:
    caffe.export
# 14. Multi-node runtime
mpchain.distributed:
    create_communicator CommunicatorBase create_multi_node_optimizer create_multi_node_evaluator
    GenericMultiNodeEvaluator create_multi_node_checkpointer scatter_dataset scatter_index
    create_empty_dataset DataSizeError MultiNodeChainList communicators functions links
    optimizers extensions datasets iterators nccl global_except_hook testing
mpchain.distributed.CommunicatorBase:
    rank size intra_rank intra_size inter_rank inter_size send recv bcast gather allgather
    alltoall scatter allreduce send_obj recv_obj bcast_obj gather_obj allreduce_obj bcast_data
    broadcast_data multi_node_mean_grad allreduce_grad split finalize set_config get_config
    config_scope within_config_scope
mpchain.distributed.extensions:
    GenericMultiNodeEvaluator create_multi_node_evaluator create_multi_node_checkpointer
    multi_node_snapshot AllreducePersistent ObservationAggregator MultiNodeEarlyStoppingTrigger
    GenericMultiNodeEvaluator.calc_local GenericMultiNodeEvaluator.aggregate
mpchain.distributed.datasets:
    scatter_dataset scatter_index create_empty_dataset DataSizeError
    scatter.get_n_iterations_for_one_epoch scatter.get_epoch_trigger
mpchain.distributed.iterators:
    create_multi_node_iterator create_synchronized_iterator
mpchain.distributed.functions:
    send recv pseudo_connect bcast gather scatter alltoall allgather
mpchain.distributed.links:
    MultiNodeChainList MultiNodeChainList.add_link MultiNodeBatchNormalization
    MultiNodeBatchNormalization.start_finetuning create_mnbn_model create_multi_node_n_step_rnn
mpchain.distributed.optimizers:
    create_multi_node_optimizer
mpchain.distributed.global_except_hook:
    add_hook
mpchain.distributed.testing:
    get_device
"""


def _exists(name):
    """Returns whether a dotted name exists; modules are imported as far as the name contains
    modules."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:i]))
            except ModuleNotFoundError:
                return False
        found = getattr(found, part)
    return True


def public_names():
    """Returns pairs (owner, dotted name) of all names; the owner is a module or class.

    Those of deleted annexes are left out.
    """
    owner, pairs = None, []
    for line in PUBLIC.splitlines():
        if line.endswith(":"):
            owner, _, annex = line[:-1].partition(" of ")
        elif line.startswith(" ") and (not annex or annex in ANNEXES):
            pairs += [(owner, f"{owner}.{name}") for name in line.split()]
    return pairs


@pytest.mark.parametrize("owner", dict.fromkeys(owner for owner, _ in public_names()))
def test_no_name_vanished(owner):
    expected = {name for of, name in public_names() if of == owner}
    assert [name for name in sorted(expected) if not _exists(name)] == []


def test_every_name_is_listed_once():
    names = [name for _, name in public_names()]
    assert len(names) == len(set(names))


def test_the_search_goes_through_modules_and_classes():
    assert _exists("mpchain.Variable.backward") and _exists("mpchain.backends.cuda.to_gpu")
    assert not _exists("mpchain.Variable.forward") and not _exists("mpchain.nowhere.at_all")
