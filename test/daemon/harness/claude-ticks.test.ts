/**
 * What the adapter does while nothing changes, and what it makes good when no watch tells of a change: ticks and pulses fired by hand.
 *
 * Files, sockets and processes are real, and so is every other timer. Opened files and connections are counted by Node's own hooks.
 */
import assert from 'node:assert/strict';
import { createHook } from 'node:async_hooks';
import {
  chmodSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Clock } from '../../../daemon/clock/clock.ts';
import { systemClock } from '../../../daemon/clock/system.ts';
import type { StandIn } from '../../standin/spawn.ts';
import { ownProcStart, patientClock, plantRecord, withRig, type ClaudeRig } from './rig.ts';

const TICK_MS = 2000;
const TICK_EMPTY_MS = 5000;
const PULSE_MS = 300;
/** Ticks in a minute, the longest that a session goes without a look. */
const MINUTE = 30;

/** Real time, but for ticks and pulses: these wait to be fired. */
class HeldClock implements Clock {
  readonly #held = new Map<'tick' | 'pulse', () => void>();
  readonly #waiters = new Map<'tick' | 'pulse', () => void>();

  now = systemClock.now;
  monotonic = systemClock.monotonic;

  after(delayMs: number, run: () => void): () => void {
    const kind = delayMs === PULSE_MS ? 'pulse' : delayMs === TICK_MS || delayMs === TICK_EMPTY_MS ? 'tick' : undefined;
    if (kind === undefined) return patientClock.after(delayMs, run);
    this.#held.set(kind, run);
    this.#waiters.get(kind)?.();
    this.#waiters.delete(kind);
    return () => void (this.#held.get(kind) === run && this.#held.delete(kind));
  }

  /** One tick, with all that comes of it: the next one is armed afterwards. */
  async tick(): Promise<void> {
    const next = this.#armed('tick');
    this.#fire('tick');
    await next;
  }

  /** One pulse; what it begins goes on by itself. */
  pulse(): void {
    this.#fire('pulse');
  }

  get hasPulse(): boolean {
    return this.#held.has('pulse');
  }

  #armed(kind: 'tick' | 'pulse'): Promise<void> {
    return new Promise((resolve) => this.#waiters.set(kind, resolve));
  }

  #fire(kind: 'tick' | 'pulse'): void {
    const run = this.#held.get(kind);
    assert.ok(run, `a ${kind} is armed`);
    this.#held.delete(kind);
    run();
  }
}

async function withHeldClock(body: (rig: ClaudeRig, clock: HeldClock) => Promise<void>, procRoot?: string): Promise<void> {
  const clock = new HeldClock();
  await withRig((rig) => body(rig, clock), { clock, ...(procRoot === undefined ? {} : { procRoot }) });
}

/** What this process opens and connects to while `body` runs. */
async function counted(body: () => Promise<void>): Promise<{ files: number; connections: number }> {
  const count = { files: 0, connections: 0 };
  const hook = createHook({
    init: (_id, type) => {
      if (type === 'FILEHANDLE') count.files += 1;
      if (type === 'PIPECONNECTWRAP') count.connections += 1;
    },
  }).enable();
  try {
    await body();
  } finally {
    hook.disable();
  }
  return count;
}

/** Nothing that the watch has told of is under way any more: what it tells after it, of a record of this process, is seen. */
async function settle(rig: ClaudeRig): Promise<void> {
  const isListed = (): boolean => rig.find(`${process.pid}:${ownProcStart()}`) !== undefined;
  const path = plantRecord(rig.configDir);
  await rig.until(isListed, 'what was told before the last');
  rmSync(path);
  await rig.until(() => !isListed(), 'what was told last');
  await rig.harness.refresh(); // looks at everything after whatever look is under way
}

/** Changes a session's record so that no watch over its folder can tell: through another name of the same file, elsewhere. */
function changeUnseen(rig: ClaudeRig, standIn: StandIn, alias: string, fields: Record<string, unknown>): void {
  const path = join(rig.dir, alias);
  writeFileSync(path, JSON.stringify({ ...(JSON.parse(readFileSync(path, 'utf8')) as object), ...fields }));
  assert.match(readFileSync(standIn.record, 'utf8'), new RegExp(String(Object.values(fields)[0])));
}

test('an idle tick opens no record and connects to no socket, and each session is looked at once within a minute all the same', async () => {
  await withHeldClock(async (rig, clock) => {
    for (let n = 0; n < 4; n++) await rig.standIn();
    await settle(rig);
    assert.equal(rig.harness.sessions().length, 4);
    const lists = rig.lists.length;
    const early = await counted(async () => {
      for (let n = 0; n < MINUTE / 2 - 1; n++) {
        await clock.tick();
        clock.pulse();
      }
    });
    assert.deepEqual(early, { files: 0, connections: 0 });
    const late = await counted(async () => {
      for (let n = MINUTE / 2 - 1; n < MINUTE; n++) await clock.tick();
    });
    assert.ok(late.connections >= 4 && late.connections <= 8, `${late.connections} looks`);
    assert.ok(late.files >= late.connections, 'each opens its record');
    assert.equal(rig.lists.length, lists, 'nothing new was told');
  });
});

test('a change that no watch tells of is seen at the next tick', async () => {
  await withHeldClock(async (rig, clock) => {
    const [unseen, beside] = [await rig.standIn(), await rig.standIn()];
    linkSync(unseen.record, join(rig.dir, 'alias'));
    await rig.harness.refresh();
    changeUnseen(rig, unseen, 'alias', { status: 'waiting' });
    await beside.send({ cmd: 'busy' });
    await rig.until(() => rig.find(beside.processKey)?.status === 'busy', 'what the watch tells of');
    assert.equal(rig.find(unseen.processKey)?.status, 'idle', 'the watch told nothing');
    await clock.tick();
    await rig.until(() => rig.find(unseen.processKey)?.status === 'waiting', 'what it did not');
  });
});

test('a folder that was put in the place of the watched one is found at the next tick', async () => {
  await withHeldClock(async (rig, clock) => {
    const first = await rig.standIn();
    await rig.see(first);
    const folder = join(rig.configDir, 'sessions');
    renameSync(folder, join(rig.configDir, 'old'));
    const second = await rig.standIn();
    await clock.tick();
    await rig.until(() => rig.find(second.processKey) !== undefined && rig.find(first.processKey) === undefined, 'the new folder');
    await second.send({ cmd: 'busy' });
    await rig.until(() => rig.find(second.processKey)?.status === 'busy', 'it is watched');
  });
});

test('a session that is killed with -9 is seen at the next pulse, and pulses end with the last session', async () => {
  await withHeldClock(async (rig, clock) => {
    const [one, other] = [await rig.standIn(), await rig.standIn()];
    await settle(rig);
    await one.kill();
    assert.ok(rig.find(one.processKey), 'nothing tells of it before');
    clock.pulse();
    await rig.until(() => rig.find(one.processKey) === undefined, 'it is gone');
    await other.kill();
    clock.pulse();
    await rig.until(() => rig.harness.sessions().length === 0, 'so is the other');
    if (clock.hasPulse) clock.pulse();
    assert.equal(clock.hasPulse, false);
    await rig.see(await rig.standIn());
    assert.equal(clock.hasPulse, true);
  });
});

test('a process that has ended but is not reaped, and one that came in the place of another, are seen at the next pulse', async () => {
  const procRoot = mkdtempSync(join(tmpdir(), 'axp-'));
  try {
    await withHeldClock(async (rig, clock) => {
      const standIn = await rig.standIn({ procStart: '4711' });
      const folder = join(procRoot, String(standIn.pid));
      const stat = (start: string, state: string): void =>
        writeFileSync(join(folder, 'stat'), `${standIn.pid} (a) ${[state, ...Array<string>(18).fill('0'), start].join(' ')}`);
      const run = (start: string): void => {
        mkdirSync(folder);
        symlinkSync(rig.dir, join(folder, 'cwd'));
        stat(start, 'S');
      };
      const isSeenGone = async (what: string): Promise<void> => {
        clock.pulse();
        await rig.until(() => rig.find(standIn.processKey) === undefined, what);
      };
      run('4711');
      symlinkSync(`/proc/${process.pid}`, join(procRoot, String(process.pid)));
      await settle(rig);
      assert.ok(rig.find(standIn.processKey));
      unlinkSync(join(folder, 'cwd'));
      stat('4711', 'Z');
      await isSeenGone('not reaped');
      symlinkSync(rig.dir, join(folder, 'cwd'));
      stat('4711', 'S');
      await rig.harness.refresh();
      assert.ok(rig.find(standIn.processKey));
      renameSync(folder, `${folder}.old`); // kept: what comes is another inode, as it is in /proc
      run('4712');
      await isSeenGone('another process');
    }, procRoot);
  } finally {
    rmSync(procRoot, { recursive: true });
  }
});

test('a listener that is gone while its process lives on is seen within a minute', async () => {
  await withHeldClock(async (rig, clock) => {
    const standIn = await rig.standIn();
    await settle(rig);
    await standIn.send({ cmd: 'zombie' });
    for (let n = 0; n < MINUTE; n++) await clock.tick();
    await rig.until(() => rig.find(standIn.processKey) === undefined, 'it is gone');
  });
});

test('a socket that is replaced, or whose folder is opened to others, is seen at the next tick, and never written to before it', async () => {
  await withHeldClock(async (rig, clock) => {
    const standIn = await rig.standIn();
    await settle(rig);
    const session = await rig.see(standIn);
    const reason = (): string | undefined => rig.find(standIn.processKey)?.reason;
    chmodSync(rig.socketDir, 0o777);
    await clock.tick();
    await rig.until(() => reason() === 'socket folder open to other users', 'the folder');
    chmodSync(rig.socketDir, 0o700);
    await clock.tick();
    await rig.until(() => reason() === undefined, 'the folder is private again');
    renameSync(standIn.socket, `${standIn.socket}.real`);
    symlinkSync(`${standIn.socket}.real`, standIn.socket);
    const notice = { id: standIn.sessionId, text: 'text' };
    assert.deepEqual(await rig.harness.notify(session, notice), { outcome: 'failed', detail: 'socket is a symbolic link' });
    unlinkSync(standIn.socket);
    renameSync(`${standIn.socket}.real`, standIn.socket);
    await clock.tick();
    await rig.until(() => reason() === undefined, 'the socket is back');
    renameSync(standIn.socket, `${standIn.socket}.real`);
    symlinkSync(`${standIn.socket}.real`, standIn.socket);
    await clock.tick();
    await rig.until(() => reason() === 'socket is a symbolic link', 'the link');
    assert.equal(standIn.all('frame').length, 0);
  });
});

test('a notice for a session whose folder has become another fails, and the list says so', async () => {
  await withHeldClock(async (rig) => {
    const [before, after, link] = ['before', 'after', 'link'].map((name) => join(rig.dir, name)) as [string, string, string];
    for (const folder of [before, after]) mkdirSync(folder);
    symlinkSync(before, link);
    const standIn = await rig.standIn({ cwd: link });
    const session = await rig.see(standIn);
    assert.equal(session.workspace, before);
    rmSync(link);
    symlinkSync(after, link);
    const result = await rig.harness.notify(session, { id: standIn.sessionId, text: 'text' });
    assert.deepEqual(result, { outcome: 'failed', detail: 'session has moved to another folder' });
    assert.equal(rig.find(standIn.processKey)?.workspace, after);
    assert.equal(standIn.all('frame').length, 0);
  });
});
