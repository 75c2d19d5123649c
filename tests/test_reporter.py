"""Tests Reporter, Summary and DictSummary."""

import math
import pickle
import statistics
import threading

import numpy as np
import pytest

import mpchain
from mpchain import configuration, functions
from mpchain.reporter import (
    DictSummary,
    Reporter,
    Summary,
    get_current_reporter,
    report,
    report_scope,
)
from mpchain.serializers import DictionarySerializer, NpzDeserializer


def restored(source, target):
    """Loads into ``target`` what ``source`` saves, and returns ``target``."""
    serializer = DictionarySerializer()
    serializer.save(source)
    NpzDeserializer(serializer.target).load(target)
    return target


def test_the_example_of_the_guide():
    reporter = Reporter()
    observer = object()
    reporter.add_observer("my_observer:", observer)
    observation = {}
    with reporter.scope(observation):
        reporter.report({"x": 1}, observer)
    assert observation == {"my_observer:/x": 1}
    observation = {}
    with reporter.scope(observation):
        report({"x": 1}, observer)
    assert observation == {"my_observer:/x": 1}


def test_report_without_observer_and_without_reporter():
    reporter = Reporter()
    with reporter:
        report({"x": 1})
    report({"x": 2})
    assert reporter.observation == {"x": 1}


def test_reporters_nest():
    outer, inner = Reporter(), Reporter()
    with outer:
        with inner:
            assert get_current_reporter() is inner
        assert get_current_reporter() is outer
    with pytest.raises(RuntimeError, match="no reporter is current"):
        get_current_reporter()


def test_scopes_put_the_old_observation_back_even_after_an_error():
    reporter = Reporter()
    before = reporter.observation
    with pytest.raises(ZeroDivisionError), reporter.scope({}):
        with report_scope({}):
            report({"x": 1})
        assert reporter.observation == {}
        1 / 0
    assert reporter.observation is before
    report({"x": 1})
    assert before == {}


def test_add_observers_puts_the_prefix_before_each_name():
    reporter = Reporter()
    a, b = object(), object()
    reporter.add_observers("main", [("/a", a), ("/b", b)])
    reporter.report({"x": 1}, a)
    reporter.report({"x": 2}, b)
    assert reporter.observation == {"main/a/x": 1, "main/b/x": 2}


def test_an_observer_without_name_is_an_error():
    with pytest.raises(KeyError, match="the observer, a list, has no name in this reporter"):
        Reporter().report({"x": 1}, [])


def test_the_current_reporter_is_the_threads_own():
    seen = []

    def in_thread():
        with pytest.raises(RuntimeError) as caught:
            get_current_reporter()
        seen.append(caught.type)

    with Reporter():
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    assert seen == [RuntimeError]


@pytest.mark.parametrize("keep", [False, True])
def test_variables_are_stored_without_their_graph_unless_kept(keep):
    x = mpchain.Variable(np.arange(3.0))
    y = functions.sum(x * x)
    reporter = Reporter()
    with reporter, configuration.using_config("keep_graph_on_report", keep):
        report({"y": y, "x": x})
    stored = reporter.observation["y"]
    assert (stored is y) == keep
    assert (stored.creator_node is not None) == keep
    assert stored.array == 5.0
    assert reporter.observation["x"] is x
    y.backward()
    np.testing.assert_array_equal(x.grad, [0.0, 2.0, 4.0])


def test_summary_against_the_standard_library():
    values = np.random.RandomState(0).normal(3, 2, 100)
    summary = Summary()
    for value in values:
        summary.add(value)
    mean, std = summary.make_statistics()
    assert math.isclose(mean, statistics.fmean(values), rel_tol=1e-14)
    assert math.isclose(std, statistics.pstdev(values), rel_tol=1e-12)
    assert summary.compute_mean() == mean


def test_weights_are_repetitions():
    weighted, repeated = Summary(), Summary()
    for value, weight in ((1.5, 3), (np.float32(-2), np.array(2)), (np.array(7), 1)):
        weighted.add(value, weight=weight)
        for _ in range(int(weight)):
            repeated.add(value)
    np.testing.assert_allclose(weighted.make_statistics(), repeated.make_statistics(), rtol=1e-14)


def test_a_value_of_weight_0_does_not_count():
    summary = Summary()
    summary.add(math.nan, weight=0)
    summary.add(2.0)
    assert summary.make_statistics() == (2.0, 0.0)


def test_summary_sums_in_float64_and_does_not_cancel():
    summary = Summary()
    for value in (1e8 + 0.5, 1e8 - 0.5) * 50:
        summary.add(np.array(value))
    assert summary.make_statistics() == (1e8, 0.5)
    summary = Summary()
    for _ in range(4000):
        summary.add(np.float16(0.1))
    assert math.isclose(summary.compute_mean(), float(np.float16(0.1)), rel_tol=1e-12)


def test_the_order_of_batches_matters_only_to_rounding():
    values = np.random.RandomState(1).uniform(0, 100, 1000)
    means = []
    for order in (np.arange(1000), np.random.RandomState(2).permutation(1000)):
        summary = Summary()
        for value in values[order]:
            summary.add(np.float32(value))
        means.append(summary.compute_mean())
    assert math.isclose(*means, rel_tol=1e-13)


def test_summary_takes_variables():
    summary = Summary()
    summary.add(mpchain.Variable(np.array(3, np.float32)))
    assert summary.compute_mean() == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(2),), "value must be a number or have shape"),
        (("loss",), "value must be a number"),
        ((1, np.zeros(2)), "weight must be a number"),
        ((1, -1), "weight must not be negative, but is -1"),
    ],
)
def test_summary_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        Summary().add(*arguments)


def test_a_summary_of_nothing_has_no_mean():
    with pytest.raises(ZeroDivisionError, match="no value has been added"):
        Summary().compute_mean()
    with pytest.raises(ZeroDivisionError, match="no value has been added"):
        Summary().make_statistics()


def test_summary_continues_bit_for_bit_after_it_was_saved():
    values = np.random.RandomState(3).normal(size=20)
    whole, first = Summary(), Summary()
    for value in values[:11]:
        whole.add(value)
        first.add(value)
    second = restored(first, Summary())
    for value in values[11:]:
        whole.add(value)
        second.add(value)
    assert second.make_statistics() == whole.make_statistics()


def test_dict_summary_takes_scalars_and_leaves_out_the_rest():
    summary = DictSummary()
    summary.add({"a": 1, "b": (2.0, 3), "array": np.zeros(3), "text": "x", "none": None})
    summary.add({"a": np.array(3.0), "b": (6.0, np.float32(1)), "triple": (1, 2, 3)})
    assert summary.compute_mean() == {"a": 2.0, "b": 3.0}
    assert summary.make_statistics() == {
        "a": 2.0,
        "a.std": 1.0,
        "b": 3.0,
        "b.std": math.sqrt(3.0),
    }


def test_dict_summary_rejects_a_weight_that_is_no_scalar():
    with pytest.raises(ValueError, match="the weight of 'loss' must be a scalar"):
        DictSummary().add({"loss": (1.0, np.zeros(2))})


def test_dict_summary_is_restored_with_its_names():
    source, target = DictSummary(), DictSummary()
    source.add({"main/loss": 1.5, 'quoted "name"': (2, 5)})
    target.add({"forgotten": 1})
    restored(source, target)
    assert target.make_statistics() == source.make_statistics()


def test_dict_summary_has_chainers_key_layout():
    summary, serializer = DictSummary(), DictionarySerializer()
    summary.add({"a": 1, "b": 2})
    summary.serialize(serializer)
    assert serializer.target["_names"] == '["a", "b"]'
    assert {"_summaries/0/_x", "_summaries/1/_n"} < set(serializer.target)


@pytest.mark.parametrize("split", [0, 1, 7, 20])
def test_merged_summaries_are_the_summary_of_all(split):
    values = np.random.RandomState(5).normal(3, 2, 20)
    weights = np.random.RandomState(6).uniform(0, 3, 20)
    whole, parts = Summary(), (Summary(), Summary())
    for i, (value, weight) in enumerate(zip(values, weights, strict=True)):
        whole.add(value, weight)
        parts[i >= split].add(value, weight)
    before, after = DictionarySerializer(), DictionarySerializer()
    before.save(parts[1])
    parts[0].merge(parts[1])
    after.save(parts[1])
    np.testing.assert_equal(after.target, before.target)
    mean = np.average(values, weights=weights)
    std = np.sqrt(np.average((values - mean) ** 2, weights=weights))
    np.testing.assert_allclose(parts[0].make_statistics(), (mean, std), rtol=1e-12)
    np.testing.assert_allclose(parts[0].make_statistics(), whole.make_statistics(), rtol=1e-13)


def test_merged_dict_summaries_keep_all_names():
    first, second = DictSummary(), DictSummary()
    first.add({"a": 1.0, "b": 2.0, "nothing": (1.0, 0)})
    second.add({"c": (5.0, 2), "a": (4.0, 2)})
    first.merge(pickle.loads(pickle.dumps(second)))
    assert first.compute_mean() == {"a": 3.0, "b": 2.0, "c": 5.0}
    first.merge(DictSummary())
    assert first.make_statistics() == {
        **{"a": 3.0, "a.std": math.sqrt(2.0), "b": 2.0, "b.std": 0.0},
        **{"c": 5.0, "c.std": 0.0},
    }


@pytest.mark.gpu
def test_summary_of_gpu_values_is_sent_as_numbers():
    summary = Summary()
    summary.add(mpchain.cuda.cupy.array(3.0))
    assert type(pickle.loads(pickle.dumps(summary)).compute_mean()) is float


@pytest.mark.gpu
def test_summary_of_gpu_values_stays_on_the_gpu():
    cupy = mpchain.cuda.cupy
    summary = Summary()
    summary.add(cupy.float32(1) + cupy.zeros(()))
    summary.add(cupy.array(3.0), weight=cupy.array(3))
    mean, std = summary.make_statistics()
    assert isinstance(mean, cupy.ndarray)
    np.testing.assert_allclose((float(mean), float(std)), (2.5, math.sqrt(0.75)), rtol=1e-14)
    assert restored(summary, Summary()).compute_mean() == 2.5


@pytest.mark.parametrize("as_scalar", [False, True])
def test_bfloat16_is_a_number(as_scalar):
    """bfloat16 has kind V, like dtypes that are not numbers."""
    value = np.full((), 0.25, mpchain.mixed_bf16)
    value = value[()] if as_scalar else value
    summary = DictSummary()
    summary.add({"a": value, "weighted": (np.float32(3), value), "image": np.zeros(2, "V4")[0]})
    assert summary.compute_mean() == {"a": 0.25, "weighted": 3.0}
