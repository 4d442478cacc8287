"""The verdict as a pure function of numbers: each cause, and what does not matter."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.diagnoses import MACHINE, loop, measured
from windeck.diagnosis import CAUSES, Diagnosis, LoopTimes, Machine, Measurements, Usage, verdict_of


def shares(given: Measurements) -> dict[str, int]:
    """Return the percentages below the bars of a report's page, by their labels."""
    found = re.findall(r"<text [^>]*>([a-z, ]+) (\d+) %</text>", Diagnosis(given).to_html())
    return {label: int(percent) for label, percent in found}


#: A loader of 10 ms a batch with a step of 1 ms, and the kind of the cause.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "asleep": ({}, "sleep"),
    "on a core": ({"cpu": 0.95}, "compute"),
    "the samples take a core": (
        {"cpu": 0.95, "stages": {"samples": 0.009, "collate": 0.001}},
        "compute",
    ),
    "collate computes": ({"cpu": 0.95, "stages": {"samples": 0.002, "collate": 0.008}}, "collate"),
    "collate sleeps": ({"stages": {"samples": 0.002, "collate": 0.008}}, "collate"),
    "faults, one page each": (
        {"cpu": 0.2, "use": {"major_faults": 5000, "read_bytes": 5000 * 4096}},
        "map",
    ),
    "faults that read ahead": ({"use": {"major_faults": 100, "read_bytes": 900_000_000}}, "map"),
    "reads of more than is delivered": ({"use": {"read_bytes": 600_000_000}}, "random"),
    "reads at the disk's rate": (
        {"use": {"read_bytes": 90_000_000}, "machine": replace(MACHINE, memcpy=None,
         disk=replace(MACHINE.disk, sequential=1e8))},  # type: ignore[type-var]
        "disk",
    ),
    "one fault beside a long sleep": ({"use": {"major_faults": 100, "read_bytes": 409_600}}, "map"),
    "bytes from the network": ({"received": 100_000_000}, "network"),
    "copies": ({"cpu": 0.95, "nbytes": 60e6}, "memory"),
    "two workers of 20 needed, asleep": ({"workers": 2}, "workers"),
    "two workers of 31 needed, asleep": ({"workers": 2, "step": 0.00065}, "workers"),
    "two workers of 100 needed, asleep": ({"workers": 2, "step": 0.0002}, "sleep"),
    "two workers of 8 needed, computing": ({"workers": 2, "cpu": 0.9, "step": 0.0026}, "workers"),
    "two workers of 20 needed, computing": ({"workers": 2, "cpu": 0.9}, "compute"),
    "workers that hand over": (
        {"workers": 2, "step": 0.0002, "stages": {"samples": 0.001, "collate": 0.001}},
        "handover",
    ),
    "workers that hand over with their processor": (
        {"workers": 2, "cpu": 0.9, "stages": {"samples": 0.001, "collate": 0.001}},
        "handover",
    ),
    "more workers than cores": (
        {"workers": 16, "cpu": 0.3, "use": {"queued_seconds": 0.6}, "step": 0.0001},
        "cores",
    ),
    "made on request, and fast enough": ({"step": 0.02}, "overlap"),
    "hand over by far too few workers, computing": (
        {"workers": 2, "cpu": 0.9, "step": 0.0026, "stages": {"samples": 1e-4, "collate": 2e-4}},
        "handover",
    ),
    "collate behind a start of workers": (
        {"workers": 1, "stages": {"samples": 1e-4, "collate": 3e-4}},
        "handover",
    ),
    "made ahead, and fast enough": ({"step": 0.02, "ahead": 2}, "step"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_causes(name: str) -> None:
    options, kind = CASES[name]
    options = {"loader": 0.01, "step": 0.001, **options}
    if name == "one fault beside a long sleep":
        options["loader"], kind = 1.0, "sleep"
    found = Diagnosis(measured(**options)).findings
    assert [finding.kind for finding in found] == [kind]
    assert CAUSES[kind] in verdict_of(measured(**options)) or kind == "step"


def test_the_sentence_of_random_reads() -> None:
    """Rates, the share of waiting, the cause and the columns to load, in one sentence."""
    given = measured(
        0.1, 0.0168, cpu=0.1, unit="windows", columns=6, column_bytes=1_200_000_000,
        ahead=2, use={"major_faults": 50_000, "read_bytes": 50_000 * 4096},
    )  # fmt: skip
    assert verdict_of(given) == (
        "the step could take 1,900 windows/s, the loader gives 320; 83 % of the time is spent "
        "waiting, most of it in random reads of a memory map; load these 6 columns, 1.2 GB, into "
        "memory"
    )
    short = replace(given, machine=replace(MACHINE, memory_free=10**9))
    assert verdict_of(short).endswith("or read it in larger requests")
    short = replace(short, subject=replace(short.subject, mapped=(("a.arrow", 5 * 10**9),)))
    assert "5 GB do not fit into the 1 GB of memory left" in verdict_of(short)


def test_the_sentence_without_a_step() -> None:
    given = measured(0.01, cpu=0.9)
    assert verdict_of(given).startswith(
        "the loader gives 3,200 samples/s, 100 MB/s; most of its time is spent in computing"
    )
    assert [finding.share for finding in Diagnosis(given).findings] == [1.0]


@pytest.mark.parametrize(("cpu", "most"), [(0.0, 32), (0.9, 8)])
def test_the_workers_that_would_keep_up(cpu: float, most: int) -> None:
    """Up to four workers that wait are advised for each of 8 cores, and one that computes."""
    for needed in range(3, 41):
        step = 0.02 / (needed - 0.5)  # two workers make a batch of 20 ms in 10 ms
        given = measured(0.01, step, workers=2, cpu=cpu)
        (found,) = Diagnosis(given).findings
        assert (found.kind == "workers") == (needed <= most)
        advice = f"num_workers={needed} would keep up, instead of 2"
        assert (advice in verdict_of(given)) == (needed <= most)


def test_a_step_that_is_slower_beside_the_loader() -> None:
    """The loss is the step's time beside the loader less its time alone."""
    given = measured(0.011, 0.01, beside=0.02, workers=4, cpu=1.0)
    assert [finding.kind for finding in Diagnosis(given).findings] == ["cores"]
    assert Diagnosis(given).findings[0].share == pytest.approx(0.5)
    assert shares(given).items() >= {"waiting for batches": 0, "slowed by the loader": 50}.items()
    assert "50 % of the time is lost in competition for the cores" in verdict_of(given)
    assert "20 ms beside the loader and 10 ms alone" in Diagnosis(given).findings[0].sentence


def test_waiting_for_a_loader_that_is_fast_alone() -> None:
    """Waiting and a slower step are one finding, where the loader alone is faster than the step."""
    given = measured(0.005, 0.01, workers=2, cpu=1.0)
    children = (Usage(cpu_seconds=4.0),)
    both = loop(0.04, wait=0.02, step=0.02, process=Usage(cpu_seconds=1.0), workers=children)
    given = replace(given, both=both)
    (found,) = Diagnosis(given).findings
    assert found.kind == "cores"
    assert found.share == pytest.approx(0.75)
    assert verdict_of(given).startswith(
        "the step could take 3,200 samples/s, beside the loader it takes 800; 75 % of the time is "
        "lost in competition for the cores; leave the step a core: fewer workers"
    )


def test_a_step_is_not_slowed_by_a_loader_that_does_not_compute() -> None:
    """Other programs on the machine make the step slower as well."""
    given = measured(0.001, 0.01, beside=0.02, workers=4)
    assert [finding.kind for finding in Diagnosis(given).findings] == ["step"]


def test_one_long_wait_for_a_loader_that_computes_little() -> None:
    """The machine may stop the loader's thread for a while: the step is the limit all the same."""
    given = measured(0.00001, 0.01, ahead=2, cpu=0.9)
    waits = Usage(cpu_seconds=1.001)
    both = loop(0.012, wait=0.002, step=0.01, process=waits)
    (found,) = Diagnosis(replace(given, both=both)).findings
    assert found.kind == "step"
    assert found.share == pytest.approx(1 - 1 / 6)


def test_threads_of_a_step_that_use_more_where_they_wait_for_each_other() -> None:
    """The loader takes no more from the step than its batches alone cost."""
    given = measured(0.001, 0.01, beside=0.02, ahead=2, cpu=0.9)
    both = replace(given.both or loop(1.0), process=Usage(cpu_seconds=3.0))
    (found,) = Diagnosis(replace(given, both=both)).findings
    assert found.kind == "step"


def crowded(others: float, queued: float, **options: Any) -> Measurements:
    """Return measurements of a step of 10 ms that takes 20 ms beside a loader of 6 ms.

    Parameters
    ----------
    others
        Seconds that other programs use in each loop.
    queued
        Seconds that the step is ready without a core in the loop beside the loader.
    """
    given = measured(0.006, 0.01, beside=0.02, ahead=2, cpu=1.0, **options)
    assert given.both is not None
    assert given.step is not None
    return replace(
        given,
        machine=replace(MACHINE, cores=2),
        loader=replace(given.loader, others_seconds=others, queued_seconds=0.0),
        both=replace(given.both, others_seconds=others, queued_seconds=queued),
        step=replace(given.step, others_seconds=others, queued_seconds=0.0),
    )


@pytest.mark.parametrize(
    ("others", "queued", "lost"),
    [
        (0.0, 1.0, 0.3),  # as far as the loader uses the processor
        (0.6, 1.0, 0.25),  # half of the queue is its own
        (2.4, 1.0, 0.1),  # a fifth
        (2.4, 0.0, 0.3),  # it waits for a lock, not for a core
        (6.0, 1.0, 1 / 22),
    ],
)
def test_time_without_a_core_is_divided_between_the_loader_and_others(
    others: float, queued: float, lost: float
) -> None:
    given = crowded(others, queued)
    (found,) = Diagnosis(given).findings
    kind, share = ("cores", lost) if lost >= 0.1 else ("step", 1 - lost)
    assert found.kind == kind
    assert found.share == pytest.approx(share)
    assert shares(given)["waiting for batches"] == 0
    assert shares(given)["slowed by the loader"] == round(100 * lost)


@pytest.mark.parametrize(("others", "kind"), [(2.0, "others"), (0.05, "step"), (None, "step")])
def test_a_wait_for_a_loader_that_is_kept_from_the_cores(others: float | None, kind: str) -> None:
    given = measured(0.0001, 0.01, ahead=2, cpu=0.9, machine=replace(MACHINE, cores=2))
    both = loop(0.02, wait=0.01, step=0.01, process=Usage(cpu_seconds=1.009))
    both = replace(both, others_seconds=others)
    given = replace(given, both=both)
    (found,) = Diagnosis(given).findings
    assert found.kind == kind
    if kind == "others":
        assert "50 % of the time is lost to other programs, which use the cores" in verdict_of(
            given
        )
        assert "other programs use 0.7 of 2 cores" in found.sentence


def test_two_findings_are_sorted_by_their_share() -> None:
    given = measured(0.06, 0.01, beside=0.02, workers=4, cpu=1.0)
    assert [finding.kind for finding in Diagnosis(given).findings] == ["compute", "cores"]
    assert "; also, 17 % is lost in competition for the cores" in verdict_of(given)


def test_a_step_on_a_gpu_is_measured_by_whole_loops() -> None:
    """The host's times overlap with the GPU's: waiting is what the loop takes beyond the step."""
    given = replace(
        measured(0.01, 0.001, ahead=2),
        both=loop(0.01, wait=0.009, step=0.001),
        step=loop(0.008, wait=0.0, step=0.0001),
        asynchronous=True,
    )
    (found,) = Diagnosis(given).findings
    assert found.share == pytest.approx(0.2)
    assert shares(given).items() >= {"waiting for batches": 20, "slowed by the loader": 0}.items()
    assert verdict_of(given).startswith("the step could take 4,000 samples/s")  # 32 in 8 ms


SECONDS = st.floats(1e-6, 1e3)


@given(
    loader=SECONDS,
    step=st.none() | SECONDS,
    beside=st.none() | SECONDS,
    cpu=st.floats(0, 3),
    workers=st.integers(0, 70),
    ahead=st.integers(0, 9),
    nbytes=st.floats(0, 1e9),
    cores=st.integers(1, 64),
    use=st.fixed_dictionaries({
        "major_faults": st.integers(0, 10**7),
        "read_bytes": st.none() | st.integers(0, 10**11),
        "queued_seconds": st.none() | st.floats(0, 1e4),
    }),
    stages=st.dictionaries(st.sampled_from(["samples", "collate", "gather"]), SECONDS),
    speed=st.sampled_from([0.01, 1.0, 100.0]),
    machine_use=st.tuples(*[st.none() | st.floats(0, 1e4)] * 4),
)  # fmt: skip
def test_any_numbers_have_a_verdict(
    loader: float,
    step: float | None,
    cores: int,
    speed: float,
    machine_use: tuple[float | None, ...],
    **options: Any,
) -> None:
    """Shares are in [0, 1], kinds are known, and the text is one line."""
    machine = replace(MACHINE, cores=cores)
    given = measured(loader, step, machine=machine, **options)
    others, queued, *more = machine_use
    if given.both is not None and given.step is not None:
        given = replace(
            given,
            both=replace(given.both, others_seconds=others, queued_seconds=queued),
            step=replace(given.step, others_seconds=more[0], queued_seconds=more[1]),
        )
    found = Diagnosis(given).findings
    assert found
    assert all(finding.kind in CAUSES and 0 <= finding.share <= 1 for finding in found)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    percents = shares(given)
    assert percents.keys() >= {"on a core", "ready, without one", "reading a disk", "asleep"}
    assert all(0 <= percent <= 100 for percent in percents.values())
    assert "\n" not in verdict_of(given)


def scaled(given: Measurements, by: float) -> Measurements:
    """The same measurements on a machine on which everything takes longer."""

    def use(one: Usage) -> Usage:
        queued = None if one.queued_seconds is None else one.queued_seconds * by
        return replace(one, cpu_seconds=one.cpu_seconds * by, queued_seconds=queued)

    def slower(one: LoopTimes | None) -> Any:
        return one and replace(
            one, seconds=one.seconds * by, waited=one.waited * by, stepped=one.stepped * by,
            wait_median=one.wait_median * by, step_median=one.step_median * by,
            process=use(one.process), workers=tuple(map(use, one.workers)),
        )  # fmt: skip

    disk = given.machine.disk
    assert disk is not None
    disk = replace(disk, sequential=disk.sequential / by, random=disk.random / by)
    stages = tuple(replace(stage, seconds=stage.seconds * by) for stage in given.stages)
    memcpy = (given.machine.memcpy or 0) / by or None
    return replace(
        given, machine=replace(given.machine, disk=disk, memcpy=memcpy), stages=stages,
        loader=slower(given.loader), both=slower(given.both), step=slower(given.step),
    )  # fmt: skip


@pytest.mark.parametrize("by", [0.01, 0.5, 100.0])
@pytest.mark.parametrize("name", CASES)
def test_the_cause_does_not_depend_on_the_speed_of_the_machine(name: str, by: float) -> None:
    options = {"loader": 0.01, "step": 0.001, **CASES[name][0]}
    given = measured(**options)
    assert [one.kind for one in Diagnosis(scaled(given, by)).findings] == [
        one.kind for one in Diagnosis(given).findings
    ]


def test_an_unknown_machine_still_gets_a_cause() -> None:
    given = measured(0.01, 0.001, machine=Machine(), use={"queued_seconds": None})
    assert Diagnosis(given).findings[0].kind == "sleep"


@pytest.mark.parametrize(
    ("stages", "advice"),
    [
        ({"order": 0.001, "gather": 0.007, "tensors": 0.001}, "threads=, a narrower dtype or "),
        ({"gather": 0.009}, "a narrower dtype or "),  # on a device
    ],
)
def test_the_advice_for_our_loader_that_computes(stages: dict[str, float], advice: str) -> None:
    given = measured(0.01, 0.001, cpu=0.95, stages=stages)
    given = replace(given, subject=replace(given.subject, kind="windeck.loader.loader.Loader"))
    finding = Diagnosis(given).findings[0]
    assert finding.kind == "compute"
    assert finding.advice == f"{advice}larger batches of the Loader may help (gather takes most)"
