"""One job: what was predicted for its ranks, what they took, and what it is made of."""

from __future__ import annotations

from parts import BYTES, COUNT, GREEN, ORANGE, RATIO, RED, Page, Variable, View

_JOB = 'system="$system",job_id="$job_id"'
_PLAN = 'plan="$plan",rank_class=~"$rank_class"'
_RANKS = f'{_JOB},rank_class=~"$rank_class"'
_CLASS = "rank class {{rank_class}}"
_OVER = ((None, RED), (0.95, ORANGE), (1.0, GREEN), (1.2, ORANGE))

PAGE = Page(
    uid="planner-job",
    title="planner / A job",
    tells="One running job: the memory that was predicted for each rank, beside what its ranks and GPUs show.",
    variables=(
        Variable(name="system", label="System", tells="What runs the job.",
                 query="label_values(planner_job_info, system)"),
        Variable(name="job_id", label="Job", tells="Its id there; only jobs that have not ended.",
                 query='label_values(planner_job_info{system="$system"}, job_id)'),
        Variable(name="plan", label="Plan", tells="The plan that the job is bound to.", shown=False,
                 query='label_values(planner_job_info{system="$system",job_id="$job_id"}, plan)'),
        Variable(name="rank_class", label="Rank class", many=True,
                 tells="Ranks that do the same thing; named by the lowest of them.",
                 query='label_values(planner_predicted_device_bytes{plan="$plan"}, rank_class)'),
    ),
    rows=(
        ("The plan", (
            View(title="Verdict", kind="stat", named=True, unit=COUNT, width=3, height=4,
                 tells="Whether the job fits, by its plan: fits, tight or exceeds.",
                 colors={"tight": ORANGE, "exceeds": RED},
                 queries=(('max by (verdict) (planner_plan_info{plan="$plan"})', "{{verdict}}"),)),
            View(title="GPU", kind="stat", named=True, unit=COUNT, width=5, height=4,
                 tells="The type of GPU that it was planned for.",
                 queries=(('max by (gpu) (planner_plan_info{plan="$plan"})', "{{gpu}}"),)),
            View(title="Ranks", kind="stat", unit=COUNT, width=3, height=4, tells="Ranks of the job: one GPU each.",
                 queries=(('max(planner_plan_ranks{plan="$plan"})', "ranks"),)),
            View(title="Fullest rank", kind="stat", width=4, height=4,
                 tells="Predicted peak of the rank that takes most, as NVML shows it.",
                 queries=(('max(planner_predicted_device_bytes{plan="$plan"})', "predicted"),)),
            View(title="Fullest rank of what it may use", kind="stat", unit=RATIO, width=4, height=4,
                 tells="Above 100 % the job runs out of memory.",
                 steps=((None, GREEN), (0.95, ORANGE), (1.0, RED)), decimals=1,
                 queries=((
                     'max(planner_predicted_device_bytes{plan="$plan"})'
                     ' / max(planner_plan_capacity_bytes{plan="$plan"})',
                     "of capacity"),)),
            View(title="Predicted over measured", kind="stat", unit=RATIO, width=5, height=4, steps=_OVER, decimals=1,
                 tells="Of the rank class that came out lowest. Below 100 % it takes more than was predicted; a job "
                       "that has not seen its first steps lies far above.",
                 queries=((f"min(job_rank_class:planner_predicted_over_actual:ratio{{{_JOB}}})", "ratio"),)),
        )),
        ("Predicted against measured", (
            View(title="Peak of each rank class", height=10,
                 tells="What ranks told of themselves (else what their GPUs show), between the ends of the interval in "
                       "which the prediction lies with 95 % probability.",
                 queries=(
                     (f'job_rank_class:planner_memory_actual:bytes{{{_RANKS}}}',
                      f"{_CLASS}: measured"),
                     (f"max by (rank_class) (planner_predicted_device_bytes{{{_PLAN}}})", f"{_CLASS}: predicted"),
                     (f"max by (rank_class) (planner_predicted_device_lowest_bytes{{{_PLAN}}})", f"{_CLASS}: lowest"),
                     (f"max by (rank_class) (planner_predicted_device_highest_bytes{{{_PLAN}}})", f"{_CLASS}: highest"),
                     ('max(planner_plan_capacity_bytes{plan="$plan"})', "may use"),
                 )),
            View(title="Memory of each GPU over time", height=10,
                 tells="In use now, as dcgm-exporter or Ray tells it, one line for each rank; and what a rank may use.",
                 queries=(
                     (f'job_gpu:planner_memory_used:bytes{{{_RANKS}}}',
                      "{{host}} {{gpu_uuid}} (rank class {{rank_class}})"),
                     ('max(planner_plan_capacity_bytes{plan="$plan"})', "may use"),
                 )),
            View(title="Predicted over measured, by GPU", unit=RATIO, decimals=1, steps=_OVER,
                 tells="Prediction over the highest use of the last day. 100 % is a perfect prediction.",
                 queries=((f'job_gpu:planner_predicted_over_actual:ratio{{{_RANKS}}}',
                           "{{host}} {{gpu_uuid}}"),)),
            View(title="Ranks", kind="table",
                 tells="Every rank class of the job: how many ranks, what was predicted, what was measured.",
                 queries=(
                     (f"max by (rank_class) (planner_rank_class_ranks{{{_PLAN}}})", ""),
                     (f"max by (rank_class) (planner_predicted_device_bytes{{{_PLAN}}})", ""),
                     (f"max by (rank_class) (planner_predicted_device_highest_bytes{{{_PLAN}}})", ""),
                     (f"max by (rank_class) (job_rank_class:planner_memory_actual:bytes{{{_RANKS}}})",
                      ""),
                 ),
                 columns=("ranks", "predicted", "at most (95 %)", "measured"), units={"ranks": COUNT}),
        )),
        ("Main memory", (
            View(title="Main memory of each node over time",
                 tells="In use on the job's nodes, as node-exporter tells it, with whatever else runs there; what the "
                       "fullest node needs at least, and what the job says there is.",
                 queries=(
                     ('job_host:planner_host_memory_used:bytes{plan="$plan",system="$system",job_id="$job_id"}',
                      "{{host}}"),
                     ('max(planner_predicted_host_bytes{plan="$plan"})', "needed at least"),
                     ('max(planner_plan_host_capacity_bytes{plan="$plan"})', "there is"),
                 )),
            View(title="Main memory in use of what there is", unit=RATIO, decimals=1,
                 tells="Near 100 % the kernel ends a process of the job.",
                 queries=(
                     ('job_host:planner_host_memory_used:ratio{plan="$plan",system="$system",job_id="$job_id"}',
                      "{{host}}"),)),
        )),
        ("What it is made of", (
            View(title="Predicted peak by category", kind="bars", unit=BYTES, height=10,
                 tells="Allocated bytes at the predicted peak, the most of any rank class chosen above.",
                 queries=((f"max by (category) (planner_predicted_category_bytes{{{_PLAN}}})", "{{category}}"),)),
            View(title="Allocated, reserved, on the device", kind="bars", height=10,
                 tells="Predicted peaks of each rank class: handed out to tensors; held by PyTorch's allocator; and "
                       "with the CUDA context and communication, as NVML shows it.",
                 queries=(
                     (f"max by (rank_class) (planner_predicted_allocated_bytes{{{_PLAN}}})", f"{_CLASS}: allocated"),
                     (f"max by (rank_class) (planner_predicted_reserved_bytes{{{_PLAN}}})", f"{_CLASS}: reserved"),
                     (f"max by (rank_class) (planner_predicted_device_bytes{{{_PLAN}}})", f"{_CLASS}: on the device"),
                 )),
        )),
    ),
)  # fmt: skip
