/**
 * The scripts that teach a shell to complete `ax`: each asks the hidden `ax __complete` and takes its lines as data.
 *
 * Owns the protocol between the two: a line `:files` or `:folders` asks for the shell's own completion of paths; every other line is a value,
 * a tab, and words about it.
 * Invariant: nothing that `ax __complete` prints is ever evaluated; the one word put into a script is the quoted path of ax.
 */
import { shellQuote } from '../../protocol/paths.ts';

export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof SHELLS)[number];

/** The script, with its last newline; `program` is how ax is called. */
export function scriptFor(shell: Shell, program: string): string {
  // Inside single quotes fish takes a backslash as an escape, POSIX shells do not.
  const ax = shellQuote(shell === 'fish' ? program.replaceAll('\\', '\\\\') : program);
  return { bash, zsh, fish }[shell](ax);
}

// Kept to what bash 3.2 knows, but for compopt, which is asked for.
const bash = (ax: string): string => `# Completion of ax for bash. In ~/.bashrc:  eval "$(${ax} completion bash)"
_ax_complete() {
  local line kind=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      '') ;;
      :*) kind=\${line#:} ;;
      *) COMPREPLY+=("\${line%%$'\\t'*}") ;;
    esac
  done <<<"$(${ax} __complete bash -- "\${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)"
  case $kind in
    files) compopt -o default 2>/dev/null ;;
    folders) compopt -o dirnames 2>/dev/null ;;
  esac
  return 0
}
complete -F _ax_complete ax
`;

const zsh = (ax: string): string => `#compdef ax
# Completion of ax for zsh. In ~/.zshrc, behind compinit:  eval "$(${ax} completion zsh)"
_ax() {
  local line kind
  local -a values shown before
  before=("\${(@Q)words[2,CURRENT-1]}")
  while IFS= read -r line; do
    case $line in
      ('') ;;
      (:*) kind=\${line#:} ;;
      (*)
        values+=("\${line%%$'\\t'*}")
        shown+=("\${line/$'\\t'/  }")
        ;;
    esac
  done <<<"$(${ax} __complete zsh -- "\${before[@]}" "\${(Q)PREFIX}" 2>/dev/null)"
  case $kind in
    (files) _files ;;
    (folders) _files -/ ;;
    (*) (( $#values )) && compadd -Q -l -d shown -a values ;;
  esac
}
if [[ "\${funcstack[1]}" == _ax ]]; then _ax "$@"; else compdef _ax ax; fi
`;

const fish = (ax: string): string => `# Completion of ax for fish. Into ~/.config/fish/completions/ax.fish:  ${ax} completion fish
function __ax_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    test (count $current) -gt 0; or set current ''
    for line in (${ax} __complete fish -- $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case ''
            case ':files'
                __fish_complete_path "$current"
            case ':folders'
                __fish_complete_directories "$current"
            case '*'
                printf '%s\\n' $line
        end
    end
end
complete -c ax -f -a '(__ax_complete)'
`;
