# Read by each bash of a launch script (BASH_ENV), after planner/runtime/scripts.py has made the folder
# $PLANNER_STAND_INS: commands in it stand first in PATH, and write down how they were called instead of starting anything.
# So do commands that are given by their path, Python's console scripts, and whatever is not installed here.

__planner_call() { "$PLANNER_STAND_INS/.call" "$@"; }
command_not_found_handle() { __planner_call "$@"; }

cd() {
  builtin cd "$@" 2>/dev/null && return
  local there inside host  # folders of the host by those of a container, each pair on two lines
  [ $# -eq 0 ] || there=${!#}
  while IFS= read -r inside && IFS= read -r host; do
    case ${there-} in "$inside" | "$inside"/*) builtin cd "$host${there#"$inside"}" 2>/dev/null && return ;; esac
  done <<< "${PLANNER_MOUNTS-}"
  __planner_call cd "$@"
}

git() {
  case ${1-} in
    clone | fetch | pull | push | lfs | submodule | checkout) return 0 ;;
    rev-parse) command git "$@" 2>/dev/null || pwd ;;
    *) command git "$@" 2>/dev/null || return 0 ;;
  esac
}

# The command that comes next, of which bash gives the text: its first word is looked up as bash will.
__planner_look() {
  [ -z "${__planner_looks-}" ] || return 0
  local __planner_looks=1 rest=$1 word= name= path= begun= line=
  printf '%s' "$2" > "$PLANNER_STAND_INS/.line"
  case $PATH in "$PLANNER_STAND_INS":*) ;; *) PATH=$PLANNER_STAND_INS:$PATH ;; esac
  unset -f exec source . 2>/dev/null
  while :; do
    rest=${rest#"${rest%%[![:space:]]*}"}
    word=${rest%%[[:space:]]*}
    case $word in
      [A-Za-z_]*=*) rest=${rest#"$word"} ;;
      exec | source | .) begun=$word rest=${rest#"$word"} ;;
      *) break ;;
    esac
    [ -n "$rest" ] || return 0
  done
  case $word in
    '' | *[\;\&\|\<\>\(\)\`\{\}\\]*) case $word in '${'*'}'*) ;; *) return 0 ;; esac ;;
  esac
  case $word in
    *[\$\~]*) word=$(trap - DEBUG; set +u; eval "set -- $word" 2>/dev/null; printf '%s' "${1-}") || return 0 ;;
    [\"\']*) word=${word//[\"\']/} ;;
  esac
  case $word in '' | *[!A-Za-z0-9_./+@%:,-]*) return 0 ;; esac
  name=${word##*/} path=$word
  case $begun in
    source | .)
      if ! [ -r "$word" ] && ! { [ "$word" = "$name" ] && type -P "$name" >/dev/null; }; then
        source() { __planner_call source "$@"; }
        .() { __planner_call source "$@"; }
      fi
      return 0 ;;
  esac
  if [ "$word" = "$name" ]; then
    case $(type -t "$name") in
      file) path=$(type -P "$name") ;;
      function) [ "$begun" = exec ] || return 0 ;;
      *) return 0 ;;
    esac
  fi
  case $path in "$PLANNER_STAND_INS"/*) return 0 ;; esac
  if [ -f "$path" ] && [ -r "$path" ]; then IFS= read -r -n 100 line < "$path" 2>/dev/null; fi
  case $name in
    *.sh) [ -r "$path" ] && eval "function $word { bash \"$path\" \"\$@\"; }" ;;
    python | python[0-9.]* | *.py) eval "function $word { __planner_call \"$word\" \"\$@\"; }" ;;
    *)
      case $line in
        '#!'*python*) eval "function $word { __planner_call \"$word\" \"\$@\"; }" ;;
        '#!'*sh*) eval "function $word { bash \"$path\" \"\$@\"; }" ;;
        *)
          if [ "$word" != "$name" ] && { [ -e "$PLANNER_STAND_INS/$name" ] || ! [ -e "$path" ]; }; then
            eval "function $word { __planner_call \"$word\" \"\$@\"; }"
          fi ;;
      esac ;;
  esac
  if [ "$begun" = exec ] && [ "$(type -t "$word")" = function ]; then
    exec() { "$@"; exit; }
  fi
  return 0
}

FUNCNEST=200
RANDOM=1
set -T
trap '__planner_look "$BASH_COMMAND" "$LINENO"' DEBUG
