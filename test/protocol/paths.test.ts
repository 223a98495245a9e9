/**
 * Paths as text: a workspace has one form, a quoted word is one word for a real shell, and a control socket's path fits.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import fc from 'fast-check';
import { AxError } from '../../protocol/errors.ts';
import { controlSocketPath, defaultStateDir, isNoticeSafe, parseWorkspace, shellQuote } from '../../protocol/paths.ts';
import { outcome, refusal } from './sample.ts';

const invalid = refusal('invalid_argument');

test('a workspace loses doubled and trailing slashes and dots, and keeps everything else', () => {
  const forms = {
    '/': '/',
    '//': '/',
    '/.': '/',
    '/a': '/a',
    '/a/': '/a',
    '//a//b/./c/': '/a/b/c',
    '/a/..': '/a/..',
    '/.git': '/.git',
    '/a b/é': '/a b/é',
    '/...': '/...',
  };
  for (const [typed, form] of Object.entries(forms)) assert.equal(parseWorkspace(typed), form);
});

test('a workspace is absolute, bounded in bytes, and holds nothing invisible', () => {
  for (const typed of ['', 'a', './a', '~', '~/a', 'C:\\a', '/a\nb', '/a\0b', '/a\u202eb', '/a\u200bb', '/a\ud800', 7, null, undefined])
    assert.throws(() => parseWorkspace(typed), invalid, String(typed));
  assert.equal(parseWorkspace(`/${'x'.repeat(4095)}`).length, 4096);
  assert.throws(() => parseWorkspace(`/${'x'.repeat(4096)}`), refusal('too_large'));
  assert.throws(() => parseWorkspace(`/${'é'.repeat(2048)}`), refusal('too_large'));
});

test('a workspace in its form stays in its form', () => {
  const piece = fc.constantFrom('/', '.', '..', 'a', 'b c', "'", 'é', '//', './');
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
      const once = outcome(() => parseWorkspace(`/${pieces.join('')}`));
      if (once instanceof AxError) return;
      assert.equal(parseWorkspace(once), once);
      assert.ok(once === '/' || (!once.endsWith('/') && !once.includes('//')));
    }),
  );
});

test('a quoted word is exactly one word for a shell', () => {
  const words = fc.sample(
    fc.string({
      unit: fc.constantFrom(
        'a',
        ' ',
        "'",
        '"',
        '\\',
        '$',
        '`',
        '!',
        '*',
        '?',
        '~',
        '#',
        '&',
        ';',
        '|',
        '(',
        '<',
        '>',
        '\n',
        '\t',
        '{',
        '}',
        '[',
        '=',
        '%',
        'é',
        '-',
      ),
      minLength: 0,
      maxLength: 12,
    }),
    { numRuns: 300, seed: 7 },
  );
  const all = [...words, '', '~', '~root', '-n', '$HOME', '$(id)', '`id`', "it's", "'", "''", '\\', '*', '#x', 'a;b', 'a\nb', '!!'];
  const script = `printf '%s\\0' ${all.map(shellQuote).join(' ')}`;
  const said = execFileSync('/bin/sh', ['-c', script]).toString('utf8').split('\0').slice(0, -1);
  assert.deepEqual(said, all);
});

test('a plain path needs no quotes', () => {
  for (const word of ['/home/a/b', 'ax', '--state-dir', 'a=b', '06c1f9']) assert.equal(shellQuote(word), word);
});

test('a path may stand in a notice unless a shell or the wrapper could read more than a word in it', () => {
  for (const path of ['/a', '/a b', "/it's", '/a"b', '/a;b', '/a&b', '/é', '/a\\b']) assert.equal(isNoticeSafe(path), true, path);
  for (const path of ['/a<b', '/a>b', '/$HOME', '/`id`', '/a\nb', '/a\u001bb', '/a\u202eb', '/a\u{e0041}'])
    assert.equal(isNoticeSafe(path), false, path);
});

test('the state folder follows the platform, and a relative XDG_STATE_HOME is ignored', () => {
  assert.equal(defaultStateDir({ platform: 'linux', home: '/h' }), '/h/.local/state/ax');
  assert.equal(defaultStateDir({ platform: 'linux', home: '/h', xdgStateHome: '/x/' }), '/x/ax');
  assert.equal(defaultStateDir({ platform: 'linux', home: '/h', xdgStateHome: 'x' }), '/h/.local/state/ax');
  assert.equal(defaultStateDir({ platform: 'darwin', home: '/h', xdgStateHome: '/x' }), '/h/Library/Application Support/ax');
});

test('a control socket path always fits into a socket address, and two state folders never share one', () => {
  const folders = [
    '/s',
    `/${'a'.repeat(80)}`,
    `/${'a'.repeat(87)}`,
    `/${'a'.repeat(88)}`,
    `/${'a'.repeat(300)}`,
    `/${'é'.repeat(60)}`,
    `/${'a'.repeat(299)}b`,
  ];
  const paths = folders.map((folder) => controlSocketPath(folder, 4_294_967_294));
  for (const path of paths) assert.ok(Buffer.byteLength(path) <= 103, path);
  assert.equal(new Set(paths).size, folders.length);
  assert.equal(controlSocketPath('/s', 1000), '/s/control.sock');
});
