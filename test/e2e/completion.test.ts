// The completion scripts in the shells themselves: bash always, zsh and fish where they are installed.
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { delimiter, dirname, join } from 'node:path';
import { before, test } from 'node:test';
import { KEYS, Terminal } from '../real/terminal.ts';
import { commandTree } from '../../cli/program.ts';
import { LAUNCHER, makeBed } from './hosts.ts';
import type { Host } from './hosts.ts';
import { runToEnd } from './processes.ts';

const bed = makeBed();
let a: Host;
let env: NodeJS.ProcessEnv;
const rc: Record<string, string> = {};

before(async () => {
  [a] = await bed.pair('hosta', 'builder-host');
  const workspace = a.workspace('work');
  const session = await a.session(workspace, { autorun: false });
  await a.call(
    'agent.setup',
    { name: 'tester', workspace },
    { harness: 'claude', session_id: session.sessionId, pid: session.pid, socket: session.socket, config_dir: session.options.configDir },
  );
  const bin = join(bed.folder, 'bin');
  mkdirSync(bin);
  symlinkSync(LAUNCHER, join(bin, 'ax'));
  env = { ...a.env, PATH: [dirname(process.execPath), bin, a.env['PATH']].join(delimiter) };
  for (const shell of ['bash', 'zsh', 'fish']) {
    const printed = await runToEnd('ax', ['completion', shell], { env, cwd: a.home });
    assert.equal(printed.status, 0, printed.stderr);
    rc[shell] = join(bed.folder, `ax.${shell}`);
    writeFileSync(rc[shell] ?? '', printed.stdout);
  }
});

const installed = (shell: string): boolean => (a.env['PATH'] ?? '').split(delimiter).some((folder) => existsSync(join(folder, shell)));

/** What bash would offer for each of these lines, as it would set the variables of a completion function; one list per line. */
async function inBash(lines: readonly string[], setup = ''): Promise<string[][]> {
  const script = [
    `source '${rc['bash']}'`,
    setup,
    'while IFS= read -r COMP_LINE; do',
    '  COMP_POINT=${#COMP_LINE}; read -ra COMP_WORDS <<<"$COMP_LINE"; COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))',
    '  [[ $COMP_LINE == *" " ]] && COMP_CWORD=$(( COMP_CWORD + 1 ))',
    '  _ax_complete ax; printf "%s\\n" "${COMPREPLY[@]}"; printf ".\\n"',
    'done',
  ].join('\n');
  const ran = await runToEnd('bash', ['--norc', '--noprofile', '-c', script], {
    env,
    cwd: a.home,
    stdin: lines.map((line) => `${line}\n`).join(''),
  });
  assert.equal(ran.status, 0, ran.stderr);
  const lists = ran.stdout.split('.\n').slice(0, -1);
  return lists.map((list) => list.split('\n').filter((word) => word !== ''));
}

test('bash knows the function for ax, and every word it offers is one that ax takes there', async () => {
  const shown = await runToEnd('bash', ['--norc', '--noprofile', '-c', `source '${rc['bash']}'; complete -p ax`], { env, cwd: a.home });
  assert.equal(shown.stdout, 'complete -F _ax_complete ax\n');
  const root = commandTree({ writeOut: () => undefined, writeErr: () => undefined });
  const nouns = root.commands.filter((one) => !one.name().startsWith('__'));
  const groups = nouns.filter((one) => one.commands.length > 0);
  const [offered, ...verbs] = await inBash(['ax ', ...groups.map((noun) => `ax ${noun.name()} `)]);
  assert.deepEqual(offered?.toSorted(), nouns.map((one) => one.name()).toSorted());
  for (const [i, noun] of groups.entries())
    assert.deepEqual(verbs[i]?.toSorted(), noun.commands.map((one) => one.name()).toSorted(), noun.name());
  const [options] = await inBash(['ax send --']);
  const send = root.commands.find((one) => one.name() === 'send');
  for (const option of options ?? []) {
    const isKnown = option === '--help' || send?.options.some((one) => one.long === option && !one.hidden) === true;
    assert.equal(isKnown, true, option);
  }
  assert.equal(options?.includes('--to'), true);
});

test('bash completes hosts and addresses of the running daemon, in words that it cuts at @ and =', async () => {
  const [hosts, addresses, cut, joined, none] = await inBash([
    'ax host show b',
    'ax send --to te',
    'ax send --to tester@Lo',
    'ax --format=j',
    'ax --state-dir /nonexistent/ax host show b',
  ]);
  assert.deepEqual(hosts, ['builder-host']);
  assert.deepEqual(addresses, ['tester@Localhost']);
  assert.deepEqual(cut, ['@Localhost']); // with the @: bash keeps it on the last piece
  assert.deepEqual(joined, ['json']);
  assert.deepEqual(none, []);
});

test('on a terminal Tab in bash finishes nouns, hosts and the paths of files', async (t) => {
  const init = join(bed.folder, 'bashrc');
  writeFileSync(init, `source '${rc['bash']}'\nPS1='ready> '\nbind 'set bell-style none'\n`);
  writeFileSync(join(a.home, 'some file.txt'), 'x');
  const terminal = new Terminal('bash', ['--noprofile', '--rcfile', init, '-i'], { env, cwd: a.home });
  t.after(() => terminal.kill());
  await terminal.until('ready>');
  terminal.type(`ax hos${KEYS.tab}`);
  await terminal.until('ready> ax host');
  terminal.type(`show bu${KEYS.tab}`);
  await terminal.until('ax host show builder-host');
  terminal.type('\x15'); // Ctrl-U: an empty line
  terminal.type(`ax send --to tester@${KEYS.tab}`);
  await terminal.until('ax send --to tester@Localhost');
  terminal.type(`--file som${KEYS.tab}`);
  await terminal.until('--file some\\ file.txt');
});

test('fish and zsh, where they are installed, offer the same', async (t) => {
  if (installed('fish')) {
    const script = `source '${rc['fish']}'; for line in 'ax hos' 'ax host show bu' 'ax send --to tes' 'ax --format=j'; complete -C $line; end`;
    const ran = await runToEnd('fish', ['--no-config', '-c', script], { env, cwd: a.home });
    const words = ran.stdout.split('\n').map((line) => line.split('\t', 1).join(''));
    assert.deepEqual(words, ['host', 'builder-host', 'tester@Localhost', '--format=json', ''], ran.stderr);
  }
  if (installed('zsh')) {
    const folder = join(bed.folder, 'zdot');
    mkdirSync(folder);
    writeFileSync(join(folder, '.zshrc'), `PS1='ready> '; autoload -Uz compinit; compinit -u -D; source '${rc['zsh']}'\n`);
    const terminal = new Terminal('zsh', ['-i'], { env: { ...env, ZDOTDIR: folder }, cwd: a.home });
    t.after(() => terminal.kill());
    await terminal.until('ready>');
    for (const [typed, done] of [
      ['ax hos', 'ax host'],
      ['show bu', 'ax host show builder-host'],
    ] as const) {
      terminal.type(`${typed}${KEYS.tab}`);
      await terminal.until(`ready> ${done}`);
    }
    terminal.type('\x15');
    terminal.type(`ax send --to tes${KEYS.tab}`);
    await terminal.until('ax send --to tester@Localhost');
  }
  // At least the one shell that every test here needs is there.
  assert.equal(installed('bash'), true);
});
