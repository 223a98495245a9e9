/**
 * A shell that may connect to nothing, as harnesses make one: a seccomp filter under which connect() and what else Codex refuses of
 * sockets fails with EPERM, and where the system allows it a folder read-only besides.
 *
 * The filter is the kernel's, put there by the perl that every Debian has, before it becomes the program under test. Linux only.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

interface Machine {
  readonly prctl: number;
  readonly seccomp: number;
  /** The kernel's word for it. */
  readonly audit: number;
  /** connect accept accept4 bind listen getsockname getpeername sendto setsockopt getsockopt shutdown: what Codex refuses. */
  readonly refused: readonly number[];
}

const MACHINES: Readonly<Record<string, Machine>> = {
  x64: { prctl: 157, seccomp: 317, audit: 0xc000003e, refused: [42, 43, 288, 49, 50, 51, 52, 44, 54, 55, 48] },
  arm64: { prctl: 167, seccomp: 277, audit: 0xc00000b7, refused: [203, 202, 242, 200, 201, 204, 205, 206, 208, 209, 210] },
};

// Load the machine; another one: allow. Load the call's number; one of the refused: fail with EPERM (1). Else allow.
const FILTER = `
my ($prctl, $seccomp, $audit, $calls) = splice(@ARGV, 0, 4);
my @calls = split(/,/, $calls);
sub op { pack('SCCL', @_) }
my $code = op(0x20,0,0,4) . op(0x15,1,0,$audit) . op(0x06,0,0,0x7fff0000) . op(0x20,0,0,0);
$code .= op(0x15,0,1,$_) . op(0x06,0,0,0x50001) for @calls;
$code .= op(0x06,0,0,0x7fff0000);
my $program = pack('Sx6P', length($code) / 8, $code);
syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "prctl: $!";
syscall($seccomp, 1, 0, $program) == 0 or die "seccomp: $!";
exec { $ARGV[0] } @ARGV or die "exec: $!";
`;

/** Words to put before a command line: it then runs under the filter. */
export function filtered(): string[] {
  const machine = MACHINES[process.arch];
  if (machine === undefined) throw new Error(`no filter is written for ${process.arch}`);
  const { prctl, seccomp, audit, refused } = machine;
  return ['/usr/bin/perl', '-e', FILTER, String(prctl), String(seccomp), String(audit), refused.join(',')];
}

/** Words that make a folder read-only for the command behind them; undefined where this system makes no such namespaces. */
export function readOnly(folder: string): string[] | undefined {
  const words = (path: string): string[] => [
    'unshare',
    '-r',
    '-m',
    'sh',
    '-c',
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"',
    path,
  ];
  const probe = mkdtempSync(join(tmpdir(), 'axro-'));
  try {
    const [program = '', ...rest] = words(probe);
    const { status } = spawnSync(program, [...rest, 'sh', '-c', '! touch "$0/x" 2>/dev/null', probe]);
    return status === 0 ? words(folder) : undefined;
  } finally {
    rmSync(probe, { recursive: true });
  }
}
