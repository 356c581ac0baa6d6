# shellcheck shell=bash
# What scripts at the command line have in common. Source it from bash, in the checkout's root.

# command_help SCRIPT [ARGUMENT]: for -h or --help prints what the script's first comment says, and
# ends it.
command_help() {
  case "${2:-}" in
    -h | --help)
      sed -n '2,/^[^#]/{/^#/!q;s/^# \{0,1\}//p}' "$1"
      exit 0
      ;;
  esac
}

# command_without_arguments SCRIPT ARGUMENT...: command_help, and refuses all other arguments.
command_without_arguments() {
  command_help "$@"
  [ $# -le 1 ] && return
  printf '%s: takes no arguments, not %s; see %s --help\n' "$(basename "$1")" "$2" "$1" >&2
  exit 2
}

# command_configure PRESET ARGUMENT...: cmake with the preset. A build tree that came with a checkout
# from another place is begun anew, since CMake takes none to another.
command_configure() {
  local preset="$1" cache="build/$1/CMakeCache.txt" fresh=() home
  shift
  home="$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache" 2>/dev/null)" || true
  if [ -f "$cache" ] && ! [ "$home" -ef "$PWD" ]; then  # the same by another path is no move
    printf 'build/%s was made for another place of this checkout; it is made anew\n' "$preset"
    fresh=(--fresh)
  fi
  cmake "${fresh[@]}" --preset "$preset" "$@"
}
