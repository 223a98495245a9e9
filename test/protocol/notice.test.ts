/**
 * Notices and the commands in them: no byte chosen by a sender, nothing a wrapper or a shell could read as more than it is.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import fc from 'fast-check';
import { makeMessageId } from '../../protocol/ids.ts';
import { fetchCommand, fetchNotice, requireNoticeSafe, setupCommand, setupNotice } from '../../protocol/notice.ts';
import { isNoticeSafe } from '../../protocol/paths.ts';
import { ID, refusal } from './sample.ts';

const path = fc
  .string({ unit: 'binary', maxLength: 30 })
  .map((text) => `/${text}`)
  .filter(isNoticeSafe);
const facts = fc.record({
  ax: fc.oneof(fc.constant({ program: 'ax' }), fc.record({ program: path, stateDir: path })),
  workspace: path,
  id: fc.uint8Array({ minLength: 10, maxLength: 10 }).map((random) => makeMessageId(1, random)),
  waiting: fc.integer({ min: 1, max: 10_000 }),
  attempt: fc.integer({ min: 1, max: 4 }),
});

test('a notice is one line of fixed words and one line of command, without < > $ backtick or control characters', () => {
  fc.assert(
    fc.property(facts, (given) => {
      for (const text of [fetchNotice(given), setupNotice(given, 'agent-1')]) {
        const lines = text.split('\n');
        assert.equal(lines.length, 2);
        for (const line of lines) assert.equal(isNoticeSafe(line), true, line);
        assert.doesNotMatch(text, /[<>$`]/);
        assert.ok(text.includes(given.id));
      }
    }),
  );
});

test('the words of a notice depend on nothing but count, attempt and id', () => {
  fc.assert(
    fc.property(facts, facts, (a, b) => {
      const same = { ...b, id: a.id, waiting: a.waiting, attempt: a.attempt };
      assert.equal(fetchNotice(a).split('\n')[0], fetchNotice(same).split('\n')[0]);
      assert.equal(setupNotice(a, 'x').split('\n')[0], setupNotice(same, 'y').split('\n')[0]);
    }),
  );
});

test('a shell reads the command of a notice as exactly the words meant', () => {
  const awkward = { program: "/opt/my tools/a'x/ax", stateDir: '/s t; rm -rf' };
  const ways: [string, string[]][] = [
    [
      setupCommand(awkward, 'alice', "/it's & here"),
      [awkward.program, '--state-dir', awkward.stateDir, 'agent', 'setup', '--name', 'alice', '--workspace', "/it's & here"],
    ],
    [fetchCommand({ program: 'ax' }, ID, '/a b'), ['ax', 'messages', 'fetch', ID, '--workspace', '/a b']],
  ];
  for (const [command, words] of ways) {
    const said = execFileSync('/bin/sh', ['-c', `printf '%s\\0' ${command}`])
      .toString('utf8')
      .split('\0')
      .slice(0, -1);
    assert.deepEqual(said, words);
  }
});

test('a code stands last in the command of a notice, behind all that a rule for it may name, and changes no other word', () => {
  const code = '0123456789abcdef'.repeat(2);
  const base = { ax: { program: 'ax' }, workspace: '/w', id: ID, waiting: 1, attempt: 1 };
  assert.equal(fetchNotice({ ...base, code }), `${fetchNotice(base)} --code ${code}`);
  assert.equal(setupNotice({ ...base, code }, 'alice'), setupNotice(base, 'alice'));
  assert.equal(fetchNotice({ ...base, code: undefined }), fetchNotice(base));
});

test('one message and many are told apart, and a reminder from the first notice', () => {
  const base = { ax: { program: 'ax' }, workspace: '/w', id: ID, waiting: 1, attempt: 1 };
  assert.match(fetchNotice(base), /^ax on this host: a message waits for this workspace, unread\. To read it, run:\nax messages fetch /);
  assert.match(fetchNotice({ ...base, waiting: 3, attempt: 2 }), /3 messages wait .* \(reminder 1\)\. To read the oldest/);
  assert.match(setupNotice(base, 'alice'), /not set up to read it\. .*\nax agent setup --name alice --workspace \/w$/);
});

test('a path that cannot stand in a notice is refused with the reason', () => {
  requireNoticeSafe('/plain path', 'a workspace');
  for (const bad of ['/a$b', '/a`b', '/a<b', '/a>b', '/a\nb'])
    assert.throws(() => requireNoticeSafe(bad, 'a workspace'), refusal('invalid_argument'));
});
