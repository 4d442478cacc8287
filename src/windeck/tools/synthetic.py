"""A made-up load curve, for when no file is at hand. Nothing in it was ever measured.

The shapes are those of real electricity demand: two peaks a day, quiet weekends and holidays, a
winter hump with some cooling in summer, weather that lasts for days, meters that fail now and then.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

HOURS_PER_DAY = 24

#: Fixed days off, (month, day): a model that only knows the weekday gets these wrong.
HOLIDAYS = ((1, 1), (5, 1), (8, 15), (10, 3), (11, 1), (12, 24), (12, 25), (12, 26), (12, 31))

Floats = npt.NDArray[np.float64]


def load_curve(
    *, sites: int = 8, days: int = 730, missing: float = 0.01, seed: int = 0
) -> pa.Table:
    """Hourly synthetic demand of some sites, sorted by site and then by time.

    Parameters
    ----------
    sites, days
        The table has ``sites * days * 24`` rows, from 2021-01-01 00:00 on.
    missing
        Share of `load` that is null, in [0, 1): single readings, and outages of some hours.
    seed
        Equal arguments give equal tables.

    Returns
    -------
    pyarrow.Table
        `site` (dictionary), `timestamp` (seconds), `load` (MW, with nulls), `temperature` (degrees
        Celsius), `wind` (m/s), `price` (per MWh), `holiday` (bool). All but the time are made up.

    Raises
    ------
    ValueError
        When there would be no row, or when `missing` is not a share.

    Examples
    --------
    >>> table = load_curve(sites=2, days=7)
    >>> table.num_rows, table.column_names[:3]
    (336, ['site', 'timestamp', 'load'])
    """
    if sites < 1 or days < 1:
        raise ValueError(f"a load curve needs at least 1 site and 1 day, not {sites} and {days}")
    if not 0 <= missing < 1:
        raise ValueError(f"missing is a share in [0, 1), not {missing}")
    rng = np.random.default_rng(seed)
    hours = days * HOURS_PER_DAY
    start = np.datetime64("2021-01-01T00", "h")
    stamps = np.arange(start, start + hours).astype("datetime64[s]")
    off = _holidays(stamps)
    temperature = _weather(stamps, sites, rng)
    load = _demand(stamps, off, temperature, rng)
    wind = np.abs(6 + 3 * _persistent(hours, sites, 0.97, rng))
    price = 40 + 0.4 * _standard(load) * 40 - 1.5 * wind + 4 * rng.standard_normal(load.shape)
    return pa.table(
        {
            "site": pa.DictionaryArray.from_arrays(
                np.repeat(np.arange(sites, dtype=np.int32), hours),
                [f"site-{number:02d}" for number in range(1, sites + 1)],
            ),
            "timestamp": np.tile(stamps, sites),
            "load": pa.array(load.ravel(), mask=_gaps(load.shape, missing, rng).ravel()),
            "temperature": temperature.ravel(),
            "wind": wind.ravel(),
            "price": price.ravel(),
            "holiday": np.tile(off, sites),
        }
    )


def write_load_curve(
    path: str | Path,
    *,
    sites: int = 8,
    days: int = 730,
    missing: float = 0.01,
    seed: int = 0,
) -> Path:
    """Writes `load_curve` as Parquet, marked as synthetic in its metadata; returns the path."""
    table = load_curve(sites=sites, days=days, missing=missing, seed=seed)
    note = f"windeck load curve, seed {seed}"
    table = table.replace_schema_metadata({"synthetic": note, **(table.schema.metadata or {})})
    pq.write_table(table, path)
    return Path(path)


def _holidays(stamps: npt.NDArray[np.datetime64]) -> npt.NDArray[np.bool_]:
    """True for every hour of a fixed day off; shape (hours,)."""
    months = stamps.astype("datetime64[M]")
    month = months.astype(np.int64) % 12 + 1
    day = (stamps.astype("datetime64[D]") - months.astype("datetime64[D]")).astype(np.int64) + 1
    return np.isin(month * 100 + day, [m * 100 + d for m, d in HOLIDAYS])


def _weather(stamps: npt.NDArray[np.datetime64], sites: int, rng: np.random.Generator) -> Floats:
    """Temperature: year, day and fronts that last for days; shape (sites, hours)."""
    hour = np.arange(len(stamps))
    year = -np.cos(2 * np.pi * (hour / HOURS_PER_DAY - 20) / 365.25)
    day = -np.cos(2 * np.pi * (hour % HOURS_PER_DAY - 3) / HOURS_PER_DAY)
    climate = 11 + 3 * rng.standard_normal((sites, 1))
    fronts = 3.5 * _persistent(len(stamps), sites, 0.985, rng)
    return np.asarray(climate + 9 * year + 3.5 * day + fronts)


def _demand(
    stamps: npt.NDArray[np.datetime64],
    off: npt.NDArray[np.bool_],
    temperature: Floats,
    rng: np.random.Generator,
) -> Floats:
    """Megawatts: a daily shape that differs on days off, heating, cooling and noise."""
    sites, hours = temperature.shape
    hour = np.arange(hours) % HOURS_PER_DAY
    # 1970-01-01 was a Thursday, so day number + 3 counts from a Monday.
    weekday = (stamps.astype("datetime64[D]").astype(np.int64) + 3) % 7
    working = np.where((weekday < 5) & ~off, 1.0, np.where(weekday == 5, 0.45, 0.25))
    morning = np.exp(-0.5 * ((hour - 8.5) / 2.2) ** 2)
    evening = np.exp(-0.5 * ((hour - 18.5) / 2.8) ** 2)
    noon = np.exp(-0.5 * ((hour - 13.0) / 3.5) ** 2)
    habits = rng.uniform(0.7, 1.3, (3, sites, 1))
    shape = 0.22 * habits[0] * morning * working
    shape = shape + 0.30 * habits[1] * evening + 0.15 * habits[2] * noon * working
    heating = 0.011 * np.maximum(15 - temperature, 0)
    cooling = 0.014 * np.maximum(temperature - 22, 0)
    noise = 0.022 * _persistent(hours, sites, 0.9, rng) + 0.012 * rng.standard_normal(
        (sites, hours)
    )
    scale = np.exp(rng.uniform(np.log(20), np.log(900), (sites, 1)))
    return np.asarray(np.round(scale * (0.55 + shape + heating + cooling + noise), 3))


def _persistent(hours: int, sites: int, memory: float, rng: np.random.Generator) -> Floats:
    """Unit-variance noise that forgets slowly (an AR(1) process); shape (sites, hours)."""
    steps = rng.standard_normal((hours, sites))
    steps[1:] *= np.sqrt(1 - memory**2)
    for now in range(1, hours):
        steps[now] += memory * steps[now - 1]
    return np.ascontiguousarray(steps.T)


def _standard(values: Floats) -> Floats:
    """Each row with mean 0 and standard deviation 1."""
    centred = values - values.mean(axis=1, keepdims=True)
    return np.asarray(centred / values.std(axis=1, keepdims=True))


def _gaps(
    shape: tuple[int, int], missing: float, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Where the meter said nothing: half of it single readings, half of it outages of 2 to 12 h."""
    gaps = rng.random(shape) < missing / 2
    sites, hours = shape
    outages = int(missing / 2 * sites * hours / 7)
    for site, start, length in zip(
        rng.integers(0, sites, outages),
        rng.integers(0, hours, outages),
        rng.integers(2, 13, outages),
        strict=True,
    ):
        gaps[site, start : start + length] = True
    return gaps
