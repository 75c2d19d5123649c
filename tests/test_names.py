"""The public names: those that exist must stay, those still missing stand in one file."""

import importlib
import pathlib

import pytest

PRESENT = {
    "mpchain": """
        backward grad no_backprop_mode force_backprop_mode using_config config global_config
        as_variable as_array get_dtype mixed16 get_array_types get_cpu_array_types
        is_arrays_compatible get_device using_device get_array_module DeviceResident
        is_debug set_debug print_runtime_info get_function_hooks get_compute_mode Function
        FunctionAdapter FunctionNode FunctionHook Link Chain ChainList Sequential LinkHook
        Parameter Variable Initializer Optimizer GradientMethod UpdateRule
        AbstractSerializer Serializer Deserializer Reporter report report_scope
        get_current_reporter Summary DictSummary __version__ CommunicatorBase
        create_communicator create_multi_node_optimizer create_multi_node_evaluator
        scatter_dataset scatter_index DataSizeError cuda
    """,
    "mpchain.device_resident": """
        DeviceResident DeviceResidentsVisitor DeviceResidentsVisitor.visit_device_resident
        DeviceResidentsVisitor.visit_array DeviceResidentsVisitor.visit_variable
    """,
    "mpchain.variable": """
        VariableNode
    """,
    "mpchain.optimizer": """
        Hyperparameter HyperparameterProxy
    """,
    "mpchain.Variable": """
        array data grad grad_var shape ndim size dtype rank name label creator creator_node
        node requires_grad device xp T backward cleargrad zerograd addgrad copydata
        set_creator set_creator_node unchain unchain_backward retain_data reshape transpose
        mean item summary debug_print to_cpu to_gpu to_device to_intel64 to_chx from_chx
        layout as_layout raw_array __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__
        __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __pow__ __rpow__ __matmul__
        __rmatmul__ __neg__ __pos__ __abs__ __getitem__ __len__ __bool__ __array_priority__
        __copy__ __reduce__
    """,
    "mpchain.Parameter": """
        initialize is_initialized update update_rule cleargrad zerograd to_device
    """,
    "mpchain.variable.VariableNode": """
        data grad grad_var label rank requires_grad creator creator_node get_variable
        get_variable_or_none set_creator set_creator_node unchain retain_data
    """,
    "mpchain.FunctionNode": """
        apply forward forward_cpu forward_gpu backward backward_accumulate retain_inputs
        retain_outputs get_retained_inputs get_retained_outputs output_data unchain add_hook
        delete_hook local_function_hooks label inputs outputs rank stack lazy_grad_sum
        is_elementwise
    """,
    "mpchain.Function": """
        __call__ forward forward_cpu forward_gpu backward backward_cpu backward_gpu
        retain_inputs retain_outputs check_type_forward add_hook delete_hook node
    """,
    "mpchain.Link": """
        init_scope within_init_scope add_param add_persistent register_persistent __call__
        params namedparams links namedlinks children count_params printable_specs copy
        copyparams repeat from_params cleargrads zerograds addgrads enable_update
        disable_update update_enabled serialize add_hook delete_hook local_link_hooks
        device_resident_accept device xp to_cpu to_gpu to_device to_intel64 to_chx from_chx
    """,
    "mpchain.Chain": """
        add_link __getitem__
    """,
    "mpchain.ChainList": """
        add_link insert __getitem__ __len__ append
    """,
    "mpchain.Sequential": """
        forward append extend insert remove remove_by_layer_type pop clear index count
        count_by_layer_type copy copyparams flatten repeat __add__
    """,
    "mpchain.FunctionHook": """
        name added deleted forward_preprocess forward_postprocess backward_preprocess
        backward_postprocess __enter__ __exit__
    """,
    "mpchain.LinkHook": """
        added deleted forward_preprocess forward_postprocess __enter__ __exit__
    """,
    "mpchain.Optimizer": """
        target t epoch setup update new_epoch use_auto_new_epoch add_hook remove_hook
        call_hooks serialize loss_scaling set_loss_scale check_nan_in_grads
        is_safe_to_update update_loss_scale
    """,
    "mpchain.GradientMethod": """
        create_update_rule reallocate_cleared_grads use_cleargrads use_fp32_update
    """,
    "mpchain.UpdateRule": """
        update update_core update_core_cpu update_core_gpu init_state add_hook remove_hook
        serialize use_fp32_update is_elementwise
    """,
    "mpchain.optimizer.Hyperparameter": """
        get_dict parent
    """,
    "mpchain.Reporter": """
        add_observer add_observers scope report __enter__ __exit__
    """,
    "mpchain.Summary": """
        add compute_mean make_statistics serialize
    """,
    "mpchain.DictSummary": """
        add compute_mean make_statistics serialize
    """,
    "mpchain.Serializer": """
        save __getitem__ __call__
    """,
    "mpchain.Deserializer": """
        load __getitem__ __call__
    """,
    "mpchain.functions": """
        add leaky_relu log_softmax softmax softplus relu sigmoid tanh broadcast_to cast
        concat get_item reshape split_axis swapaxes transpose where convolution_1d
        convolution_2d convolution_3d convolution_nd deconvolution_1d deconvolution_2d
        deconvolution_3d deconvolution_nd linear accuracy binary_accuracy mean_squared_error
        sigmoid_cross_entropy softmax_cross_entropy average matmul maximum mean minimum sum
        sum_to absolute exp log sqrt square dropout batch_normalization
        fixed_batch_normalization average_pooling_2d average_pooling_nd max_pooling_2d
        max_pooling_nd
    """,
    "mpchain.links": """
        Linear Convolution1D Convolution2D Convolution3D ConvolutionND Deconvolution1D
        Deconvolution2D Deconvolution3D DeconvolutionND BatchNormalization Classifier
        Convolution2D.from_params BatchNormalization.start_finetuning
    """,
    "mpchain.initializers": """
        Constant Zero One NaN Identity Normal LeCunNormal GlorotNormal HeNormal Uniform
        LeCunUniform GlorotUniform HeUniform Orthogonal UpsamplingDeconvFilter
        DownsamplingConvFilter generate_array
    """,
    "mpchain.initializer": """
        get_fans
    """,
    "mpchain.Initializer": """
        __call__
    """,
    "mpchain.optimizers": """
        SGD MomentumSGD CorrectedMomentumSGD NesterovAG AdaDelta AdaGrad SMORMS3 MSVAG
        RMSprop RMSpropGraves Adam AdamW AMSGrad AdaBound AMSBound Adam.lr SGDRule
        MomentumSGDRule CorrectedMomentumSGDRule NesterovAGRule AdaDeltaRule AdaGradRule
        SMORMS3Rule MSVAGRule RMSpropRule RMSpropGravesRule AdamRule
    """,
    "mpchain.optimizer_hooks": """
        WeightDecay Lasso GradientHardClipping GradientNoise GradientLARS GradientClipping
        WeightDecay.name WeightDecay.call_for_each_param WeightDecay.timing Lasso.name
        Lasso.call_for_each_param Lasso.timing GradientHardClipping.name
        GradientHardClipping.call_for_each_param GradientHardClipping.timing
        GradientNoise.name GradientNoise.call_for_each_param GradientNoise.timing
        GradientLARS.name GradientLARS.call_for_each_param GradientLARS.timing
        GradientClipping.name GradientClipping.call_for_each_param GradientClipping.timing
    """,
    "mpchain.training": """
        Trainer Trainer.extend Trainer.get_extension Trainer.run Trainer.serialize
        Trainer.elapsed_time Trainer.is_before_training Extension Extension.trigger
        Extension.priority Extension.name Extension.default_name Extension.__call__
        Extension.initialize Extension.finalize Extension.on_error Extension.serialize
        make_extension PRIORITY_WRITER PRIORITY_EDITOR PRIORITY_READER Updater
        Updater.connect_trainer Updater.update Updater.finalize Updater.get_optimizer
        Updater.get_all_optimizers Updater.serialize StandardUpdater get_trigger
        util.get_trigger IntervalTrigger
    """,
    "mpchain.training.updaters": """
        StandardUpdater StandardUpdater.epoch StandardUpdater.epoch_detail
        StandardUpdater.previous_epoch_detail StandardUpdater.is_new_epoch
        StandardUpdater.get_iterator StandardUpdater.update_core
    """,
    "mpchain.training.triggers": """
        IntervalTrigger ManualScheduleTrigger OnceTrigger TimeTrigger BestValueTrigger
        MaxValueTrigger MinValueTrigger EarlyStoppingTrigger
        EarlyStoppingTrigger.get_training_length
    """,
    "mpchain.training.extensions": """
        Evaluator Evaluator.default_name Evaluator.evaluate Evaluator.get_iterator
        Evaluator.get_all_iterators Evaluator.get_target Evaluator.get_all_targets snapshot
        snapshot_object snapshot_writers.Writer snapshot_writers.SimpleWriter LogReport
        LogReport.log PrintReport ProgressBar PlotReport PlotReport.available
        FailOnNonNumber observe_lr observe_value
    """,
    "mpchain.dataset": """
        DatasetMixin DatasetMixin.__getitem__ DatasetMixin.__len__ DatasetMixin.get_example
        Iterator Iterator.__next__ Iterator.next Iterator.finalize Iterator.serialize
        Iterator.__enter__ Converter converter concat_examples to_device get_dataset_root
        set_dataset_root get_dataset_directory cached_download cache_or_load_file
    """,
    "mpchain.datasets": """
        TupleDataset DictDataset ConcatenatedDataset SubDataset TransformDataset
        split_dataset split_dataset_random split_dataset_n split_dataset_n_random
        get_cross_validation_datasets get_cross_validation_datasets_random get_mnist
        get_kuzushiji_mnist get_fashion_mnist get_kuzushiji_mnist_labels
        get_fashion_mnist_labels
    """,
    "mpchain.iterators": """
        SerialIterator SerialIterator.reset SerialIterator.repeat OrderSampler
        OrderSampler.__call__ ShuffleOrderSampler
    """,
    "mpchain.serializers": """
        save_npz load_npz DictionarySerializer NpzDeserializer
    """,
    "mpchain.function_hooks": """
        TimerHook TimerHook.total_time TimerHook.summary TimerHook.print_report
        CupyMemoryProfileHook CupyMemoryProfileHook.total_used_bytes
        CupyMemoryProfileHook.total_acquired_bytes CupyMemoryProfileHook.summary
        CupyMemoryProfileHook.print_report CUDAProfileHook PrintHook
    """,
    "mpchain.link_hooks": """
        SpectralNormalization WeightStandardization TimerHook
    """,
    "mpchain.backend": """
        Device Device.xp Device.name Device.supported_array_types Device.use
        Device.create_context Device.send Device.is_array_supported Device.__enter__
        CpuDevice GpuDevice GpuDevice.from_device_id GpuDevice.from_array Intel64Device
        ChainerxDevice get_device get_device_from_array get_array_module copyto to_chx
        from_chx
    """,
    "mpchain.backends.cuda": """
        available cudnn_enabled check_cuda_available cupy ndarray Device Stream Event
        DummyDevice get_device get_device_from_id get_device_from_array to_gpu to_cpu copy
        get_array_module memoize clear_memo fuse elementwise reduce raw
        get_max_workspace_size set_max_workspace_size
    """,
    "mpchain.config": """
        debug train enable_backprop type_check dtype keep_graph_on_report lazy_grad_sum
        warn_nondeterministic use_cudnn use_cudnn_tensor_core cudnn_deterministic
        cudnn_fast_batch_normalization autotune use_ideep use_static_graph schedule_func
        compute_mode in_recomputing show
    """,
    "mpchain.configuration": """
        GlobalConfig LocalConfig
    """,
    "mpchain.utils": """
        type_check.TypeInfo type_check.TypeInfoTuple type_check.Expr type_check.Variable
        type_check.expect type_check.eval type_check.InvalidType type_check.make_variable
        type_check.same_types type_check.prod type_check.expect_broadcast_shapes
        type_check.get_types
    """,
    "mpchain.gradient_check": """
        numerical_grad check_backward check_double_backward NondifferentiableError
        assert_allclose
    """,
    "mpchain.testing": """
        FunctionTestCase LinkTestCase LinkInitializersTestCase InitializerArgument
        FunctionTestError LinkTestError unary_math_function_unittest parameterize
        parameterize_pytest from_pytest_parameterize product product_dict
        inject_backend_tests BackendConfig fix_random generate_seed with_requires
        without_requires patch assert_allclose assert_warns generate_matrix run_module
        attr.gpu attr.multi_gpu attr.cudnn attr.ideep attr.slow attr.chainerx
        condition.repeat_with_success_at_least condition.repeat condition.retry
        save_and_load save_and_load_npz save_and_load_hdf5 get_trainer_with_mock_updater
    """,
    "mpchain.computational_graph": """
        build_computational_graph ComputationalGraph ComputationalGraph.dump
    """,
    "mpchain.distributed": """
        create_communicator CommunicatorBase create_multi_node_optimizer
        create_multi_node_evaluator scatter_dataset scatter_index create_empty_dataset
        DataSizeError communicators optimizers extensions datasets iterators
        global_except_hook
    """,
    "mpchain.distributed.CommunicatorBase": """
        rank size intra_rank intra_size inter_rank inter_size send recv bcast gather
        allgather alltoall scatter allreduce send_obj recv_obj bcast_obj gather_obj
        allreduce_obj bcast_data broadcast_data multi_node_mean_grad allreduce_grad split
        finalize set_config get_config config_scope within_config_scope
    """,
    "mpchain.distributed.extensions": """
        create_multi_node_evaluator
    """,
    "mpchain.distributed.datasets": """
        scatter_dataset scatter_index create_empty_dataset DataSizeError
    """,
    "mpchain.distributed.iterators": """
        create_synchronized_iterator
    """,
    "mpchain.distributed.optimizers": """
        create_multi_node_optimizer
    """,
    "mpchain.distributed.global_except_hook": """
        add_hook
    """,
}
"""Names that exist, by the module or class that they belong to."""

MISSING = pathlib.Path(__file__).with_name("missing_names.txt")


def _exists(name):
    """Whether a dotted name leads somewhere: through modules as far as there are any."""
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


def _present():
    return [f"{owner}.{name}" for owner, names in PRESENT.items() for name in names.split()]


def _missing():
    lines = MISSING.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("owner", PRESENT)
def test_no_name_vanished(owner):
    names = [f"{owner}.{name}" for name in PRESENT[owner].split()]
    assert [name for name in names if not _exists(name)] == []


def test_the_list_of_missing_names_shrinks():
    found = [name for name in _missing() if _exists(name)]
    assert found == [], "move these from missing_names.txt to PRESENT"


def test_every_name_is_listed_once():
    names = _present() + _missing()
    assert sorted(names) == sorted(set(names))


def test_the_search_goes_through_modules_and_classes():
    assert _exists("mpchain.Variable.backward") and _exists("mpchain.backends.cuda.to_gpu")
    assert not _exists("mpchain.Variable.forward") and not _exists("mpchain.nowhere.at_all")
