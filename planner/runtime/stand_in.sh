#!/bin/sh
# Stands in for a command, by its name: writes down its words, folder, variables, and what it is given.
name=${0##*/}
if [ "$name" = .call ]; then
  name=$1
  shift
fi
plain=${name##*/}

own_output() { [ /proc/$$/fd/1 -ef "$PLANNER_STAND_INS/.said" ] || [ /proc/$$/fd/1 -ef /dev/null ]; }

# In what a script takes from a command that was not run stands what would have given it.
not_known() {
  own_output && return
  words=$(printf '%s ' "$plain" "$@" | head -c 200 | tr -s ' \n\t' ' ')
  printf '\356\200\200output\356\200\202of\356\200\202%s\356\200\201' "$(printf '%s' "${words% }" | sed 's/ /\xee\x80\x82/g')"
}

# In one piece, as the real ones do: `| head -n 1` under `set -o pipefail` would end a script that has more to say.
numbered() {
  [ "$2" = 0 ] || seq -f "$1%.0f" "$2"
}

real() {
  PATH=$(printf '%s' "$PATH" | sed "s|$PLANNER_STAND_INS:||g")
  case $name in */*) if [ -x "$name" ]; then exec "$name" "$@"; fi ;; esac
  unset BASH_ENV
  command -v "$plain" >/dev/null && exec "$plain" "$@"
  case $plain in python*) exec "$PLANNER_PYTHON" "$@" ;; esac
  exit 127
}

case $plain in
  sleep) PATH=${PATH#"$PLANNER_STAND_INS":} exec sleep 0.02 ;;
  sh | dash | zsh) exec bash "$@" ;;
  hostname)
    case ${1-} in -i | -I | --ip* | --all-ip*) echo 127.0.0.1 ;; *) echo node1 ;; esac
    exit 0 ;;
  getent) [ "${1-}" = hosts ] && echo 127.0.0.1 node1 && exit 0; real "$@" ;;
  scontrol)
    case "$*" in show\ hostname*) ;; *) not_known "$@"; exit 0 ;; esac
    [ -n "${SLURM_JOB_NUM_NODES-}" ] || { not_known "$@"; exit 0; }
    numbered node "$SLURM_JOB_NUM_NODES"
    exit 0 ;;
  nvidia-smi)
    case "$*" in *-L* | *--list-gpus* | *--query-gpu*) ;; *) exit 0 ;; esac
    if [ "$PLANNER_GPUS" = 0 ]; then own_output || : > "$PLANNER_STAND_INS/.asked"; fi
    numbered GPU "$PLANNER_GPUS"
    exit 0 ;;
  env) [ $# -gt 0 ] || exec /usr/bin/env ;;
  python*)
    case "${1-}" in
      -c)
        case $2 in
          *device_count*)
            if [ "$PLANNER_GPUS" = 0 ]; then own_output || : > "$PLANNER_STAND_INS/.asked"; fi
            echo "$PLANNER_GPUS"
            exit 0 ;;
        esac
        real "$@" ;;
      '' | - | -V | --version) real "$@" ;;
    esac ;;
  srun)
    at=0
    for word; do
      case $word in
        hostname) shift $at; exec "$@" ;;
        bash | sh | python* | torchrun) break ;;
      esac
      at=$((at + 1))
    done ;;
esac

{
  printf '%s\0' "$(pwd -P)" $# "$name" "$@"
  /usr/bin/env -0
  printf end
} > "$PLANNER_STAND_INS/.calls/$$"
if [ "$name" = sbatch ]; then cat > "$PLANNER_STAND_INS/.calls/$$.given"; fi
case $plain in
  torchrun | deepspeed | accelerate | pip | pip3 | conda | mamba | micromamba | module | cd | source) ;;
  *) not_known "$@" ;;
esac
exit 0
