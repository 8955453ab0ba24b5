"""Every place where bytes cross from a tenant to planner: who reads them, within which limits, and which test sends
hostile ones. docs/reference/threats.md has this list, and a test compares them."""

from __future__ import annotations

from dataclasses import dataclass

from planner.admission import gpu_requests, specs
from planner.job import size_limits
from planner.job.launching import layers
from planner.runtime import messages, scripts
from planner.service.history import job_table
from planner.service.http import bodies, run_requests
from planner.service.scheduling import plan_tasks
from planner.settings import Settings
from planner.tracing import rank_trace
from planner.tracing.program import rank_orders
from planner.tracing.program.rank_process import USUAL_LIMITS
from planner.units import show_bytes

TENANTS = "tests/service/fuzz/test_what_tenants_send.py"
ANY = "tests/service/fuzz/test_any_input.py"
BODIES = (
    "tests/service/fuzz/test_hostile_bodies.py::test_every_hostile_body_is_answered_soon_and_by_no_fault_of_planner"
)


@dataclass(frozen=True, slots=True)
class Crossing:
    what: str
    reader: str
    """A module of planner."""
    limits: str
    test: str

    @property
    def row(self) -> str:
        return f"| {self.what} | `{self.reader}` | {self.limits} | `{self.test}` |"


CROSSINGS = (
    Crossing(
        "a request's body: a job, a search, a spec by words",
        "planner/service/http/body_readers.py",
        f"{show_bytes(Settings().body_bytes)}; JSON of {size_limits.MOST_JSON_VALUES:,} values,"
        f" {size_limits.MOST_DEPTH} deep; a job of {size_limits.MOST_VALUES:,}; YAML of"
        f" {show_bytes(size_limits.LARGEST_YAML)}; {bodies.LIMITS.seconds:g} s and"
        f" {show_bytes(bodies.LIMITS.memory_bytes)} in a process of its own",
        BODIES,
    ),
    Crossing(
        "a tarball of a program, and each of its members",
        "planner/service/http/run_requests.py",
        f"{run_requests.MOST_FILES:,} files, {show_bytes(run_requests.MOST_UNPACKED_BYTES)} unpacked; files and folders"
        f" under relative names of {run_requests.LONGEST_PATH:,} characters, each one thing; sizes and times as files"
        " have them",
        f"{TENANTS}::test_hostile_tarballs_are_refused_soon",
    ),
    Crossing(
        "a launch line",
        "planner/job/launching/line.py",
        f"{run_requests._MOST_WORDS:,} words, {run_requests._LONGEST_COMMAND:,} characters; {size_limits.MOST_RANKS:,}"
        f" ranks, {run_requests.MOST_RANKS} of them run",
        f"{TENANTS}::test_hostile_launch_lines_are_refused_soon_and_read_nothing_of_the_service",
    ),
    Crossing(
        "a script or a config file that the launch line names",
        "planner/runtime/scripts.py",
        f"of the program's own files, and readable by everybody; {show_bytes(run_requests.MOST_TEXT_BYTES)};"
        f" a script runs behind walls: {scripts.LIMITS.seconds:g} s, {show_bytes(scripts.LIMITS.memory_bytes)},"
        f" {scripts.LIMITS.tasks} processes; of it {scripts._MOST_CALLS:,} commands of {scripts._MOST_WORDS:,} words",
        f"{TENANTS}::test_hostile_launch_lines_are_refused_soon_and_read_nothing_of_the_service",
    ),
    Crossing(
        "the environment that a launch line or a script sets",
        "planner/job/launching/layers.py",
        f"{layers._MOST_VARIABLES:,} variables of {scripts.LONGEST_VALUE:,} bytes;"
        " set behind the walls",
        f"{TENANTS}::test_hostile_launch_lines_are_refused_soon_and_read_nothing_of_the_service",
    ),
    Crossing(
        "the answer of a program's process: its report",
        "planner/tracing/program/rank_orders.py",
        f"the types of a run's own record; {show_bytes(rank_orders._MOST_BYTES)}, lists of"
        f" {rank_orders._MOST_LISTED:,}, texts of {rank_orders._MOST_TEXT:,} characters",
        f"{TENANTS}::test_hostile_answers_of_programs_are_refused_soon",
    ),
    Crossing(
        "the same: its trace",
        "planner/tracing/rank_trace.py",
        f"{show_bytes(USUAL_LIMITS.answer_bytes)}; lines of {show_bytes(rank_trace._MOST_LINE_CHARACTERS)}, counts up"
        f" to 2^62, texts of {rank_trace._MOST_TEXT:,} characters;"
        f" {rank_orders._MOST_REPEATED:,} events that repeat",
        f"{TENANTS}::test_hostile_answers_of_programs_are_refused_soon",
    ),
    Crossing(
        "the same: an error that it says it had",
        "planner/runtime/messages.py",
        f"{show_bytes(messages._MOST_PROBLEM_BYTES)}, {messages._MOST_CHARACTERS:,} characters of each part",
        f"{TENANTS}::test_hostile_answers_of_programs_are_refused_soon",
    ),
    Crossing(
        "what is kept of a run",
        "planner/service/scheduling/plan_tasks.py",
        show_bytes(plan_tasks.MOST_STATEMENT_BYTES),
        "tests/service/test_runs.py::test_a_run_of_which_too_much_is_to_be_said_is_not_kept",
    ),
    Crossing(
        "a factory's name, whatever names it",
        "planner/job/code_rules.py",
        "patterns of the operator; none: nothing is called",
        "tests/service/test_code_of_users.py"
        "::test_whatever_named_a_factory_it_is_asked_for_where_it_would_be_called",
    ),
    Crossing(
        "a job's report, and the log of its end",
        "planner/service/history/job_table.py",
        f"{job_table.LONGEST_REPORT:,} characters of a report, {job_table.LONGEST_FAILURE:,} of a failure",
        BODIES,
    ),
    Crossing(
        "a snapshot of CUDA memory",
        "planner/allocator/snapshot.py",
        "plain data only; in a process of its own",
        f"{ANY}::test_a_text_with_bytes_cut_out_and_put_in",
    ),
    Crossing(
        "an object that Kubernetes reviews, and its annotations",
        "planner/admission/webhook.py",
        f"{show_bytes(specs.MOST_BYTES)} of a spec, {gpu_requests.MOST_CONTAINERS:,} containers, "
        f"{gpu_requests.MOST_CLAIMS} claims; what is not as the API has it asks for nothing",
        f"{ANY}::test_a_text_with_bytes_cut_out_and_put_in",
    ),
)  # fmt: skip
