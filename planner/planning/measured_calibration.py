"""The calibration that is used where none is given: learnt from the observed steps in the folder of facts."""

from __future__ import annotations

from functools import lru_cache

from planner.calibration.document import observation_from_json
from planner.calibration.interval import Calibration
from planner.calibration.learning import learn
from planner.calibration.observation import Observation
from planner.facts.folder import OBSERVATIONS, FolderState, facts_folder, read_lines, state_of


def measured_calibration() -> Calibration:
    """What the facts teach; `Calibration.none()` where there are none. Raises FactsError for facts that are damaged."""
    return _learnt(state_of(facts_folder(), OBSERVATIONS))


def measured_observations() -> tuple[Observation, ...]:
    """Every observed step of the facts."""
    return _read(state_of(facts_folder(), OBSERVATIONS))


@lru_cache(maxsize=4)
def _learnt(state: FolderState) -> Calibration:
    return learn(_read(state))


@lru_cache(maxsize=4)
def _read(state: FolderState) -> tuple[Observation, ...]:
    return tuple(observation_from_json(document, place) for place, document in read_lines(state))
