#!/bin/sh
# Tells the planner service of jobs that Slurm ended out of memory. On the controller, in slurm.conf:
#   EpilogSlurmctld=/etc/slurm/epilog_out_of_memory.sh
# Only what sacct says is read, never a user's files: of a GPU that ran out the callback tells (docs/python.md).
# The states of a job's steps may reach the accounting after the job's end; a job that nobody planned is not known.
PLANNER_SERVER=${PLANNER_SERVER:-http://planner.example:8642}
export PLANNER_SERVER
(
  cd / || exit 0 # no module of the folder where slurmctld runs
  sleep "${PLANNER_EPILOG_SECONDS:-30}"
  sacct --noheader --parsable2 --jobs "$SLURM_JOB_ID" --format JobID,State,ExitCode |
    timeout 60 python3 -P -m planner explain - --job "slurm/$SLURM_JOB_ID"
) >/dev/null 2>&1 </dev/null &
exit 0
