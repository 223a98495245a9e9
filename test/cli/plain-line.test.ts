/**
 * The three commands that run most: their plain lines are read without the tree of all commands, and mean the same as with it.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Command } from 'commander';
import { build } from 'esbuild';
import { SHAPES, plainLine } from '../../cli/plain-line.ts';
import type { PlainCommand } from '../../cli/plain-line.ts';
import { commandTree } from '../../cli/program.ts';
import { AxError } from '../../protocol/errors.ts';
import { SOURCES, scripted } from './scripted.ts';

const COMMANDS = Object.keys(SHAPES) as PlainCommand[];
/** Flags of the whole program that any command takes, and `--harness`, which `send` has of its own. */
const GLOBAL = ['--format', '--harness', '--harness-version', '--harness-session', '--local-workspace'];
/** The most that the plain path may weigh, bytes: what is read and compiled before the first word goes to the daemon. */
const MOST = 62_000;

function declared(name: PlainCommand): Command {
  const find = (at: Command, word: string): Command => at.commands.find((one) => one.name() === word) ?? assert.fail(`no ${word}`);
  return name.split(' ').reduce(find, commandTree({}));
}

for (const name of COMMANDS) {
  test(`\`ax ${name}\` takes the same words and flags on its plain path as in the tree`, () => {
    const shape = SHAPES[name];
    const command = declared(name);
    const options = command.options.filter(
      (option) => !GLOBAL.includes(option.long ?? '') || (name === 'send' && option.long === '--harness'),
    );
    const flags = options.filter((option) => !option.isBoolean());
    assert.deepEqual(Object.keys(shape.values).toSorted(), flags.map((option) => String(option.long)).toSorted());
    assert.ok(flags.every((option) => (option.required && option.parseArg === undefined) || option.argChoices !== undefined));
    for (const option of flags) assert.deepEqual(shape.values[option.long ?? ''] ?? undefined, option.argChoices);
    assert.deepEqual(
      [...shape.switches].toSorted(),
      options
        .filter((option) => option.isBoolean())
        .map((option) => String(option.long))
        .toSorted(),
    );
    const words = command.registeredArguments;
    assert.deepEqual(shape.words, [words.filter((word) => word.required).length, words.length]);
  });

  test(`what a plain line of \`ax ${name}\` gives is what the tree reads out of it`, () => {
    const shape = SHAPES[name];
    const line = [
      '--state-dir',
      '/s',
      '--harness=claude',
      ...name.split(' '),
      ...Array.from({ length: shape.words[1] }, (_, i) => `word${i}`),
      ...Object.entries(shape.values).flatMap(([flag, choices]) => [flag, choices?.[0] ?? `${flag.slice(2)} =1`]),
      ...shape.switches,
      '--local-workspace',
      '/w',
    ];
    const plain = plainLine(line) ?? assert.fail('it is not taken as plain');
    const root = commandTree({});
    const leaf = name.split(' ').reduce<Command>((at, word) => at.commands.find((one) => one.name() === word) ?? assert.fail(word), root);
    leaf.action(() => undefined);
    root.parse(line, { from: 'user' });
    const { localWorkspace, ...options } = leaf.opts();
    assert.equal(plain.command, name);
    assert.deepEqual(plain.args, leaf.args);
    assert.deepEqual(plain.options, options);
    assert.deepEqual(plain.flags, { ...root.opts(), localWorkspace });
  });
}

test('a line is plain only when nothing about it is unusual', () => {
  const send = ['send', '--to', 'a@b', 'text'];
  assert.deepEqual(plainLine(['--format', 'json', ...send]), {
    command: 'send',
    flags: { format: 'json' },
    args: ['text'],
    options: { to: 'a@b' },
  });
  assert.deepEqual(plainLine(['admin', '--format=json', 'status'])?.flags, { format: 'json' });
  for (const odd of [
    [],
    ['help', 'send'],
    ['send', '--help'],
    ['send', '-h'],
    ['send', 'help', 'more'],
    ['--version'],
    ['messages'],
    ['messages', 'list'],
    ['messages', 'fetch'],
    ['messages', 'fetch', 'a', 'b'],
    ['admin', 'status', '--', 'x'],
    ['admin', 'messages', 'fetch', 'x'],
    ['admin', '--state-dir', '/s', 'status'],
    ['send', '--state-dir', '/s', 'text'],
    ['toString'],
    ['send', '--constructor', 'x'],
    [...send, '--to', 'c@d'],
    [...send, '--note=yes'],
    [...send, '--note', '--note'],
    [...send, '--wait', 'seen'],
    [...send, '--subject'],
    [...send, '--subject='],
    [...send, '--subject', '--note'],
    [...send, '--sub', 'x'],
    ['--format', 'json', ...send, '--format', 'json'],
  ])
    assert.equal(plainLine(odd), undefined, odd.join(' '));
});

test('the plain path is small, and holds neither another command nor a library', async () => {
  const { metafile } = await build({
    entryPoints: [join(SOURCES, 'cli', 'main.ts')],
    bundle: true,
    platform: 'node',
    target: 'node22',
    format: 'cjs',
    minify: true,
    write: false,
    metafile: true,
    absWorkingDir: SOURCES,
    external: ['./whole.ts'],
    supported: { 'dynamic-import': false },
    outfile: 'ax.cjs',
  });
  const [made] = Object.values(metafile.outputs);
  assert.ok(made !== undefined && made.bytes <= MOST, `${made?.bytes} bytes`);
  const inputs = Object.keys(made.inputs).filter((path) => (made.inputs[path]?.bytesInOutput ?? 0) > 0);
  assert.deepEqual(
    inputs.filter((path) =>
      /^(node_modules|daemon|cli\/(commands|completion|doctor))\/|^cli\/(command|program|dialogue|launch|rules)/.test(path),
    ),
    [],
  );
  assert.ok(inputs.includes('cli/sending.ts') && inputs.includes('cli/fetching.ts') && inputs.includes('cli/overview.ts'));
  // What Node has of its own costs as well: these are there in every process.
  const own = made.imports.filter(({ path, kind }) => kind === 'require-call' && path !== './whole.ts').map(({ path }) => path);
  const lazy = ['node:fs/promises', 'node:net', 'node:v8']; // of what keeps a body in a file, of the usual way to a socket, of large bodies
  assert.deepEqual([...new Set(own)].filter((path) => !lazy.includes(path)).toSorted(), [
    'node:buffer',
    'node:events',
    'node:fs',
    'node:path',
  ]);
});

test('a plain command loads no module of another command, and node:crypto, node:net and node:v8 neither', async (t) => {
  const rig = await scripted(t, {
    'admin.status': () => {
      throw new AxError('invalid_state', 'not asked here');
    },
  });
  const watch = join(rig.folder, 'watch.mjs');
  writeFileSync(
    watch,
    `import { registerHooks } from 'node:module';
registerHooks({ load(url, context, next) { process.stderr.write('loaded ' + url + '\\n'); return next(url, context); } });\n`,
  );
  const { stderr } = await rig.ax(['admin', 'status'], { env: { NODE_OPTIONS: `--import=${watch}` } });
  const loaded = [...stderr.matchAll(/^loaded (\S+)$/gm)].map(([, url]) => url ?? '');
  assert.match(stderr, /not asked here/);
  assert.ok(
    loaded.some((url) => url.endsWith('/cli/overview.ts')),
    stderr,
  );
  assert.deepEqual(
    loaded.filter((url) =>
      /node_modules|\/daemon\/|\/cli\/(commands|completion|doctor)\/|\/cli\/(program|command|whole)\.ts|^node:(crypto|net|v8)/.test(url),
    ),
    [],
  );
});
