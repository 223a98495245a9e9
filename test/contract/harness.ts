/**
 * What every implementation of the harness seam must do, as one suite bound to the adapters of Claude Code and Codex and to the
 * simulated harness.
 *
 * Owns the rules; the rig it is given owns how sessions are made and how time goes on. What kind of harness it is, its traits say: a rule
 * that asks for something a kind does not have (receipts, a clear, exported values) is not registered for it.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Harness, NoticeResult, Session, SessionClaim } from '../../daemon/harness/harness.ts';
import { AxError } from '../../protocol/errors.ts';
import type { NoticeOutcome } from '../../protocol/states.ts';

export interface RigTraits {
  /** What an attempt resolves with that the session takes. */
  readonly taken: 'written' | 'in_queue';
  /** What is said of it afterwards, when nobody objects. */
  readonly afterwards: readonly NoticeOutcome[];
  /** The harness tells what its user decides about a notice. */
  readonly hasReceipts: boolean;
  /** A conversation can be cleared: the same process goes on with another. */
  readonly hasClear: boolean;
  /** What a shell exports besides the session's id. */
  readonly exports: readonly ('pid' | 'socket')[];
}

/** What a session does with a notice; all but `acts` only where the harness has receipts. */
export type RigBehaviour = 'acts' | 'holds' | 'approves' | 'denies' | 'lapses' | 'blocks';

export interface RigSession {
  readonly workspace: string;
  readonly processKey: string;
  sessionId(): string;
  claim(): SessionClaim;
  /** The texts of the notices that reached it, each time they did. */
  received(): Promise<readonly string[]>;
  setStatus(status: 'idle' | 'busy' | 'waiting'): Promise<void>;
  /** Only where the harness has it. */
  clear(): Promise<void>;
  end(): Promise<void>;
  /** Its end without a word to anybody; that of every other session may come with it. */
  crash(): Promise<void>;
}

export interface HarnessRig {
  /** Already started; what it publishes is collected below. */
  readonly harness: Harness;
  readonly lists: readonly (readonly Session[])[];
  readonly notices: readonly { readonly id: string; readonly result: NoticeResult }[];
  add(behaviour: RigBehaviour): Promise<RigSession>;
  /** Lets time go on until `check` holds; rejects when it takes too long. */
  until(check: () => boolean, what: string): Promise<void>;
  /** Lets time go on until `work` is done. */
  drive<T>(work: Promise<T>): Promise<T>;
  stop(): Promise<void>;
}

const id = (n: number): string => `00000000-0000-4000-8000-${String(n).padStart(12, '0')}`;

const OUTCOMES: readonly { behaviour: RigBehaviour; said: readonly NoticeOutcome[] }[] = [
  { behaviour: 'holds', said: ['held'] },
  { behaviour: 'approves', said: ['held', 'approved'] },
  { behaviour: 'denies', said: ['held', 'denied'] },
  { behaviour: 'lapses', said: ['held', 'lapsed'] },
  { behaviour: 'blocks', said: ['blocked'] },
];

/**
 * Registers the suite under `name`; `makeRig` is called once for every rule, with what `define` hands to its test (nothing, for
 * node:test's own `test`).
 */
export function harnessContract<C = unknown>(
  name: string,
  traits: RigTraits,
  makeRig: (context: C) => Promise<HarnessRig>,
  define: (title: string, body: (context: C) => Promise<void>) => void = (title, body) => void test(title, () => body(undefined as C)),
): void {
  const rule = (title: string, body: (rig: HarnessRig) => Promise<void>): void => {
    define(`${name}: ${title}`, async (context) => {
      const rig = await makeRig(context);
      try {
        await body(rig);
      } finally {
        await rig.stop();
      }
    });
  };
  sessionRules(rule);
  noticeRules(rule, traits);
  if (traits.hasReceipts) receiptRules(rule, traits);
  if (traits.hasClear) clearRules(rule);
  proofRules(rule, traits);
}

type Rule = (title: string, body: (rig: HarnessRig) => Promise<void>) => void;

const find = (rig: HarnessRig, session: RigSession): Session | undefined =>
  rig.harness.sessions().find((one) => one.processKey === session.processKey);

async function seen(rig: HarnessRig, session: RigSession): Promise<Session> {
  await rig.until(() => find(rig, session)?.sessionId === session.sessionId(), 'the session is seen');
  return find(rig, session)!;
}

function sessionRules(rule: Rule): void {
  rule('the first look is published, even when nothing lives', async (rig) => {
    await rig.until(() => rig.lists.length > 0, 'a first list');
    assert.deepEqual(rig.lists[0], []);
  });

  rule('a session appears by itself and disappears when it ends', async (rig) => {
    const session = await rig.add('acts');
    const { workspace, harness, reachable } = await seen(rig, session);
    assert.deepEqual({ workspace, harness, reachable }, { workspace: session.workspace, harness: rig.harness.kind, reachable: true });
    await session.end();
    await rig.until(() => find(rig, session) === undefined, 'the session is gone');
    assert.deepEqual(rig.lists.at(-1), []);
  });

  rule('a crashed session is not live', async (rig) => {
    const session = await rig.add('acts');
    await seen(rig, session);
    await session.crash();
    assert.deepEqual(await rig.drive(rig.harness.refresh()), []);
  });

  rule('refresh resolves with what lives now', async (rig) => {
    const first = await rig.add('acts');
    const second = await rig.add('acts');
    const live = await rig.drive(rig.harness.refresh());
    assert.deepEqual(live.map((one) => one.sessionId).toSorted(), [first.sessionId(), second.sessionId()].toSorted());
  });

  rule('a change of status is published', async (rig) => {
    const session = await rig.add('acts');
    await seen(rig, session);
    for (const status of ['busy', 'waiting', 'idle'] as const) {
      await session.setStatus(status);
      await rig.until(() => rig.lists.at(-1)?.[0]?.status === status, `status ${status}`);
    }
  });
}

function noticeRules(rule: Rule, traits: RigTraits): void {
  rule('a notice reaches its session once, and only what the kind of harness says of every notice is said of it', async (rig) => {
    const session = await rig.add('acts');
    const result = await rig.drive(rig.harness.notify(await seen(rig, session), { id: id(1), text: 'one line\nax messages fetch 0' }));
    assert.equal(result.outcome, traits.taken);
    await rig.until(() => rig.notices.length >= traits.afterwards.length, 'what is said afterwards');
    assert.deepEqual(await session.received(), ['one line\nax messages fetch 0']);
    assert.deepEqual(
      rig.notices.map((one) => [one.id, one.result.outcome]),
      traits.afterwards.map((outcome) => [id(1), outcome]),
    );
  });

  for (const how of ['end', 'crash'] as const) {
    rule(`a notice for a session after its ${how} fails`, async (rig) => {
      const session = await rig.add('acts');
      const before = await seen(rig, session);
      await session[how]();
      const result = await rig.drive(rig.harness.notify(before, { id: id(1), text: 'text' }));
      assert.equal(result.outcome, 'failed');
    });
  }
}

function receiptRules(rule: Rule, traits: RigTraits): void {
  for (const { behaviour, said } of OUTCOMES) {
    rule(`what the harness says of a notice comes later, with the notice's id: ${said.join(', then ')}`, async (rig) => {
      const session = await rig.add(behaviour);
      const before = await seen(rig, session);
      let isDecided = false;
      const attempt = rig.harness.notify(before, { id: id(7), text: 'text' }).then((result) => {
        isDecided = true;
        assert.deepEqual(rig.notices, [], 'nothing is said before the attempt has its own result');
        return result;
      });
      const result = await rig.drive(attempt);
      assert.equal(result.outcome, traits.taken);
      await rig.until(() => rig.notices.length >= said.length, `${said.length} outcomes`);
      assert.ok(isDecided);
      const heard = rig.notices.map((one) => [one.id, one.result.outcome]);
      assert.deepEqual(
        heard,
        said.map((outcome) => [id(7), outcome]),
      );
    });
  }
}

function clearRules(rule: Rule): void {
  rule('a cleared conversation has another id and keeps its process key', async (rig) => {
    const session = await rig.add('acts');
    const before = await seen(rig, session);
    await session.clear();
    const after = await seen(rig, session);
    assert.notEqual(after.sessionId, before.sessionId);
    assert.equal(after.processKey, before.processKey);
    assert.equal(rig.harness.sessions().length, 1);
  });

  rule('a notice for a conversation that was cleared writes nothing and fails', async (rig) => {
    const session = await rig.add('acts');
    const before = await seen(rig, session);
    await session.clear();
    const result = await rig.drive(rig.harness.notify(before, { id: id(1), text: 'text' }));
    assert.equal(result.outcome, 'failed');
    assert.deepEqual(await session.received(), []);
  });

  rule('a claim of the conversation before a clear is refused, and that of the new one is proved', async (rig) => {
    const session = await rig.add('acts');
    const before = session.claim();
    await session.clear();
    await assert.rejects(rig.drive(rig.harness.prove(before)), isRefusal);
    await rig.drive(rig.harness.prove(session.claim()));
  });
}

function proofRules(rule: Rule, traits: RigTraits): void {
  rule('the true claim of a live session is proved', async (rig) => {
    const session = await rig.add('acts');
    const proved = await rig.drive(rig.harness.prove(session.claim()));
    assert.deepEqual([proved.sessionId, proved.processKey, proved.workspace], [session.sessionId(), session.processKey, session.workspace]);
  });

  const wrong: [string, (claim: SessionClaim) => SessionClaim][] = [
    ['session id', (claim) => ({ ...claim, sessionId: id(9) })],
    ['empty session id', (claim) => ({ ...claim, sessionId: '' })],
    ['session id that is none', (claim) => ({ ...claim, sessionId: '../x' })],
  ];
  if (traits.exports.includes('pid'))
    wrong.push(
      ['process id', (claim) => ({ ...claim, pid: 1 })],
      ['negative process id', (claim) => ({ ...claim, pid: -(claim.pid ?? 1) })],
    );
  if (traits.exports.includes('socket'))
    wrong.push(['socket', (claim) => ({ ...claim, socket: `${claim.socket}x` })], ['empty socket', (claim) => ({ ...claim, socket: '' })]);
  for (const [what, spoil] of wrong) {
    rule(`a claim with a wrong value is refused: ${what}`, async (rig) => {
      const session = await rig.add('acts');
      await seen(rig, session);
      await assert.rejects(rig.drive(rig.harness.prove(spoil(session.claim()))), isRefusal);
    });
  }

  if (traits.exports.includes('pid'))
    rule('a claim with values of two sessions is refused', async (rig) => {
      const [one, other] = [await rig.add('acts'), await rig.add('acts')];
      await assert.rejects(rig.drive(rig.harness.prove({ ...one.claim(), sessionId: other.sessionId() })), isRefusal);
      await assert.rejects(rig.drive(rig.harness.prove({ ...one.claim(), pid: other.claim().pid ?? 0 })), isRefusal);
    });

  rule('a claim of an ended session is refused', async (rig) => {
    const session = await rig.add('acts');
    const claim = session.claim();
    await rig.drive(rig.harness.prove(claim));
    await session.end();
    await assert.rejects(rig.drive(rig.harness.prove(claim)), isRefusal);
  });
}

function isRefusal(error: unknown): boolean {
  return error instanceof AxError && (error.code === 'not_found' || error.code === 'invalid_state');
}
