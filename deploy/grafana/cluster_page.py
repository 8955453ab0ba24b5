"""The cluster: what jobs asked for, what they will take, and what lies idle."""

from __future__ import annotations

from parts import BYTES, COUNT, GREEN, JOB_LINK, ORANGE, RATIO, RED, Page, Variable, View

_GROUP = 'team=~"$team",queue=~"$queue",gpu=~"$gpu"'


def _sum(name: str, by: str = "") -> str:
    """Over groups, each taken once however many replicas are scraped."""
    return f"sum {f'by ({by}) ' if by else ''}(max by (team, queue, gpu) ({name}{{{_GROUP}}}))"


_JOBS = 'max by (system, job_id, team, queue) (planner_job_info{team=~"$team",queue=~"$queue"}'


def _stat(title: str, name: str, tells: str, unit: str = BYTES) -> View:
    return View(title=title, kind="stat", unit=unit, width=4, height=4, tells=tells, queries=((_sum(name), title),))


PAGE = Page(
    uid="planner-cluster",
    title="planner / The cluster",
    tells="GPU memory by team, queue and type of GPU: asked for, predicted, measured, and stranded.",
    variables=(
        Variable(name="team", label="Team", tells="Of the job.", many=True,
                 query="label_values(planner_capacity_jobs, team)"),
        Variable(name="queue", label="Queue", tells="Of the job.", many=True,
                 query='label_values(planner_capacity_jobs{team=~"$team"}, queue)'),
        Variable(name="gpu", label="GPU", tells="The type that jobs are planned for.", many=True,
                 query="label_values(planner_capacity_jobs, gpu)"),
    ),
    span="now-24h",
    rows=(
        ("Now", (
            _stat("Open jobs", "planner_capacity_jobs", "Jobs that are bound to a plan and have not ended.", COUNT),
            _stat("GPUs", "planner_capacity_gpus", "GPUs of these jobs.", COUNT),
            _stat("Asked for", "planner_capacity_requested_bytes", "Memory of the GPUs that they asked for."),
            _stat("Predicted", "planner_capacity_predicted_bytes", "What all their ranks together will take."),
            _stat("Headroom", "planner_capacity_headroom_bytes", "What they asked for and will not need."),
            View(title="Predicted of asked for", kind="stat", unit=RATIO, width=4, height=4, decimals=1,
                 tells="Low: smaller GPUs, or fewer, would do. Above 100 %: jobs will run out of memory.",
                 steps=((None, ORANGE), (0.5, GREEN), (1.0, RED)),
                 queries=((f"{_sum('planner_capacity_predicted_bytes')} / {_sum('planner_capacity_requested_bytes')}",
                           "ratio"),)),
        )),
        ("Capacity", (
            View(title="Asked for, predicted, measured", height=9,
                 tells="Measured is of the ranks that told their peak; beside it, what was predicted for the same.",
                 queries=(
                     (_sum("planner_capacity_requested_bytes"), "asked for"),
                     (_sum("planner_capacity_predicted_bytes"), "predicted"),
                     (_sum("planner_capacity_measured_bytes"), "measured"),
                     (_sum("planner_capacity_predicted_of_measured_bytes"), "predicted for the measured"),
                 )),
            View(title="GPUs in use by type", kind="stacked", unit=COUNT, height=9,
                 tells="GPUs of jobs that have not ended.",
                 queries=((_sum("planner_capacity_gpus", "gpu"), "{{gpu}}"),)),
            View(title="Headroom by team", kind="bars", tells="What each team asked for and will not need.",
                 queries=((_sum("planner_capacity_headroom_bytes", "team"), "{{team}}"),)),
            View(title="Teams, queues, GPUs", kind="table",
                 tells="All of it by group; the smallest groups are added up as _other when there are many.",
                 queries=tuple((_sum(f"planner_capacity_{name}", "team, queue, gpu"), "") for name in
                               ("jobs", "gpus", "requested_bytes", "predicted_bytes", "headroom_bytes")),
                 columns=("jobs", "GPUs", "asked for", "predicted", "headroom"),
                 units={"jobs": COUNT, "GPUs": COUNT}),
        )),
        ("Stranded memory", (
            View(title="Stranded by type of GPU", kind="stacked",
                 tells="Memory that jobs may use on their GPUs and did not touch within the last day.",
                 queries=((f"sum by (gpu) (team_queue_gpu:planner_headroom_wasted:bytes{{{_GROUP}}})", "{{gpu}}"),)),
            View(title="Stranded by queue", kind="stacked",
                 tells="The same by queue.",
                 queries=((f"sum by (queue) (team_queue_gpu:planner_headroom_wasted:bytes{{{_GROUP}}})",
                           "{{queue}}"),)),
            View(title="In use on GPUs without a known job",
                 tells="GPUs whose job is not bound to a plan: what runs past planner.",
                 queries=(("gpu_uuid:gpu_memory_used:bytes unless on (gpu_uuid) job_gpu:planner_memory_used:bytes",
                           "{{gpu_uuid}}"),)),
            View(title="Closest to their limit", kind="table", unit=RATIO, decimals=1,
                 tells="The 20 GPUs of jobs that use most of what they may.",
                 steps=((None, GREEN), (0.9, ORANGE), (0.97, RED)),
                 queries=((
                     "topk(20, job_gpu:planner_memory_used:bytes"
                     " / on (plan) group_left () max by (plan) (planner_plan_capacity_bytes))", ""),),
                 columns=("of what it may use",), hidden=("plan",), link=("This job", JOB_LINK)),
        )),
        ("Main memory", (
            View(title="Main memory asked for and predicted", height=9,
                 tells="Of the nodes of open jobs: what the jobs say they have, and what they will take.",
                 queries=(
                     (_sum("planner_capacity_host_requested_bytes"), "asked for"),
                     (_sum("planner_capacity_host_predicted_bytes"), "predicted"),
                 )),
            View(title="Hosts closest to their limit", kind="table", unit=RATIO, decimals=1, height=9,
                 tells="The 20 nodes of jobs that use most of the main memory that the jobs say there is.",
                 steps=((None, GREEN), (0.85, ORANGE), (0.95, RED)),
                 queries=(("topk(20, job_host:planner_host_memory_used:ratio)", ""),),
                 columns=("of what there is",), hidden=("plan",), link=("This job", JOB_LINK)),
        )),
        ("Jobs", (
            View(title="Jobs above their prediction", kind="stat", unit=COUNT, width=4,
                 tells="Jobs of which a rank class took more than was predicted for it.",
                 steps=((None, GREEN), (1, ORANGE)),
                 queries=(("planner:jobs_above_prediction:count", "jobs"),)),
            View(title="Jobs out of memory", kind="stacked", unit=COUNT, width=8,
                 tells="Jobs that ended out of memory within the last hour, by whose it was and by cause.",
                 queries=(("max by (memory, cause) (increase(planner_jobs_out_of_memory_total[1h]))",
                           "{{memory}}: {{cause}}"),)),
            View(title="Out of memory by team", kind="table", unit=COUNT, width=12,
                 tells="Remembered jobs that ended out of memory, of the GPU or of the host.",
                 queries=((f"sum by (team, queue, gpu, memory) (max by (team, queue, gpu, memory)"
                           f" (planner_capacity_out_of_memory_jobs{{{_GROUP}}})) > 0", ""),),
                 columns=("jobs",)),
            View(title="Open jobs", kind="table", width=24,
                 tells="Each job with its largest rank: predicted, and of what it may use. Follow a row to the job.",
                 queries=(
                     (f"{_JOBS} * on (plan) group_left () max by (plan) (planner_predicted_device_bytes))", ""),
                     (f"{_JOBS} * on (plan) group_left () (max by (plan) (planner_predicted_device_bytes)"
                      " / max by (plan) (planner_plan_capacity_bytes)))", ""),
                 ),
                 columns=("predicted", "of what it may use"), units={"of what it may use": RATIO},
                 link=("This job", JOB_LINK)),
        )),
    ),
)  # fmt: skip
