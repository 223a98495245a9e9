/**
 * `kill -9` at random points, of both daemons and of the CLI, while messages are sent and fetched; then the books are compared.
 *
 * Most sends and fetches go over the control socket directly, many at a time, the rest through the real CLI, which is killed as well. The
 * delays before kills are drawn from SEED (default 1); STORM_MESSAGES and STORM_KILLS make it longer (`make storm`). Oracle: every id whose
 * send returned is in the receiver's store exactly once and ends confirmed; every body has the sent digest; a body given again says
 * `refetch`; the sender ends at `fetched` for each.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { before, test } from 'node:test';
import { setTimeout as delay } from 'node:timers/promises';
import type { FetchedMessage, MessageRow, SessionEnvironment } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { Lost } from './client.ts';
import { makeBed, seeded, sessionOf, shellOf, until } from './hosts.ts';
import type { Host } from './hosts.ts';
import type { Json } from './processes.ts';

const SEED = Number(process.env['SEED'] ?? 1);
/** At least so many of each, in all. */
const MESSAGES = Number(process.env['STORM_MESSAGES'] ?? 612);
const KILLS = Number(process.env['STORM_KILLS'] ?? 66);
/** Of each daemon, and of each command; those of starting daemons come on top. */
const CLI_KILLS = Math.min(Math.ceil(KILLS / 4.4), 60);
const DAEMON_KILLS = Math.ceil((KILLS - 2 * CLI_KILLS) / 2);
const CLI_MESSAGES = Math.ceil(CLI_KILLS * 2.8);
const FAST_MESSAGES = MESSAGES - CLI_MESSAGES;
const SETTLE_LIMIT_MS = 30_000 + MESSAGES * 20;

const random = seeded(SEED);
const bed = makeBed();
let a: Host;
let b: Host;
let workspace: string;
let session: SessionEnvironment;
let shell: NodeJS.ProcessEnv;

const kills = { sender: 0, receiver: 0, starting: 0, send: 0, fetch: 0 };
/** Digest of every message whose send has answered. */
const sent = new Map<string, string>();
/** How often a body reached a reader whole. */
const printed = new Map<string, number>();
/** Ids the CLI fetches; all others are fetched over the socket. */
const forCli = new Set<string>();
let isolated: Host;
let late: string;
let isStorm = true;
/** One of the parts has failed: the others stop. */
let hasFailed = false;
let refetched = 0;

before(async () => {
  [a, b] = await bed.pair();
  // Not part of the storm: nobody listens there, and the deadline passes meanwhile.
  isolated = await bed.running('hostc');
  await isolated.ok(['host', 'add', 'nowhere', '/ip4/127.0.0.1/tcp/9/p2p/12D3KooWGSXjgfvMg8GSAmru5tYiCodRmwZCYfAhbEGi2o2R5dy2']);
  const words = ['send', '--host', 'nowhere', '--destination-workspace', '/srv/x', '--harness', 'claude', '--deadline', '1s', 'too late'];
  late = String((await isolated.ok(words))['message_id']);
  workspace = b.workspace('work');
  const reader = await b.session(workspace, { autorun: false });
  session = sessionOf(reader);
  shell = shellOf(reader);
  await b.call('agent.setup', { name: 'worker', workspace }, session);
});

function digest(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** What a killed daemon does to its callers; nothing else is repeated. */
function isPassing(error: unknown): boolean {
  return error instanceof Lost || (error instanceof AxError && error.code === 'shutting_down');
}

/** Repeats a request until its daemon has answered it. */
async function persist<T>(work: () => Promise<T>): Promise<T> {
  const end = performance.now() + 60_000;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!isPassing(error) || hasFailed || performance.now() > end) throw error;
      await delay(20);
    }
  }
}

function makeBody(): Uint8Array {
  const size = random(20) === 0 ? 100_000 + random(200_000) : 1 + random(3000);
  const bytes = new Uint8Array(size);
  for (let i = 0; i < Math.min(size, 64); i++) bytes[i] = random(256);
  return bytes;
}

async function sendFast(body: Uint8Array, key: string): Promise<void> {
  const params = { host: 'hostb', workspace, harness: 'claude', kind: 'message', body, request_id: key };
  const queued = await persist(() => a.call<{ message_id: string }>('message.send', params));
  assert.equal(sent.has(queued.message_id), false, 'two requests made one message');
  sent.set(queued.message_id, digest(body));
}

/** Waits for the next batch of sends: a kill a few ms later meets them on their way. */
const batchStarts: (() => void)[] = [];
function nextBatch(): Promise<void> {
  return new Promise((resolve) => void batchStarts.push(resolve));
}

async function sendAllFast(): Promise<void> {
  for (let done = 0; done < FAST_MESSAGES && !hasFailed;) {
    const batch = Math.min(1 + random(24), FAST_MESSAGES - done);
    const sends = Array.from({ length: batch }, (_, i) => sendFast(makeBody(), `fast-${done + i}`));
    for (const tell of batchStarts.splice(0)) tell();
    await Promise.all(sends);
    done += batch;
    await delay(random(900));
  }
}

/** The real CLI, killed at a random moment while kills are left, and typed again with the same request id. */
async function sendByCli(n: number): Promise<void> {
  const body = makeBody();
  const args = [
    '--format',
    'json',
    'send',
    '--host',
    'hostb',
    '--destination-workspace',
    workspace,
    '--harness',
    'claude',
    '--request-id',
    `cli-${n}`,
    '--file',
    '-',
  ];
  await until(
    `send ${n}`,
    async () => {
      const isKilled = kills.send < CLI_KILLS && random(2) === 0;
      const outcome = await a.ax(args, {
        stdin: body,
        onStart: (child) => {
          // At any moment of its life, or just when its answer comes out: then it is stored, and typed again all the same.
          if (isKilled && random(3) === 0) child.stdout?.once('data', () => child.kill('SIGKILL'));
          else if (isKilled) void delay(random(200)).then(() => child.kill('SIGKILL'));
        },
      });
      if (outcome.signal === 'SIGKILL') kills.send += 1;
      if (outcome.status !== 0) return `${outcome.status} ${outcome.stdout}${outcome.stderr}`;
      const id = String(outcome.json['message_id']);
      sent.set(id, digest(body));
      forCli.add(id);
      return true;
    },
    60_000,
  );
}

async function sendAllByCli(): Promise<void> {
  for (let n = 0; n < CLI_MESSAGES && !hasFailed; n++) await sendByCli(n);
}

/** Takes note of a body that reached its reader whole. */
function read(id: string, body: Uint8Array, isRefetch: boolean): void {
  // The answer of a send may have been lost with its daemon, so its digest can be known later than its body.
  const times = printed.get(id) ?? 0;
  if (times > 0) {
    assert.equal(isRefetch, true, `${id} was printed again without a word`);
    refetched += 1;
  }
  printed.set(id, times + 1);
  bodies.set(id, digest(body));
}
const bodies = new Map<string, string>();

async function fetchFast(id: string): Promise<void> {
  const fetched = await b.call<FetchedMessage>('message.fetch', { id, workspace }, session);
  assert.equal(digest(fetched.body), fetched.sha256);
  read(id, fetched.body, fetched.refetch);
  if (isStorm && random(8) === 0) return; // a reader that dies before it confirms
  await b.call('message.confirm', { id, hand_out: fetched.hand_out });
}

async function available(): Promise<string[]> {
  const { messages } = await b.call<{ messages: MessageRow[] }>('message.list', { workspace, state: 'available', limit: 500 });
  return messages.map((row) => row.message_id);
}

/** Reads until everything sent was read and nothing is left; after the storm only while that gets on: the books tell what is missing. */
async function readAll(round: () => Promise<boolean>): Promise<void> {
  let seen = -1;
  let end = 0;
  for (;;) {
    if (isStorm || seen !== bodies.size) end = performance.now() + SETTLE_LIMIT_MS;
    seen = bodies.size;
    try {
      const isDone = await round();
      if ((!isStorm && isDone) || hasFailed || performance.now() > end) return;
    } catch (error) {
      if (!isPassing(error) || hasFailed) throw error;
    }
    await delay(isStorm ? random(200) : 20);
  }
}

async function readFast(): Promise<boolean> {
  const ids = (await available()).filter((id) => !forCli.has(id));
  await Promise.all(ids.slice(0, 64).map(fetchFast));
  return ids.length === 0 && bodies.size >= sent.size;
}

async function readByCli(): Promise<boolean> {
  const ids = (await available()).filter((id) => forCli.has(id));
  for (const id of ids.slice(0, 3)) await fetchByCli(id);
  return ids.length === 0;
}

async function fetchByCli(id: string): Promise<void> {
  const isKilled = isStorm && kills.fetch < CLI_KILLS && random(2) === 0;
  const outcome = await b.ax(['--format', 'json', 'messages', 'fetch', id, '--workspace', workspace], {
    env: shell,
    cwd: workspace,
    onStart: (child) => {
      if (isKilled) void delay(random(300)).then(() => child.kill('SIGKILL'));
    },
  });
  if (outcome.signal === 'SIGKILL') kills.fetch += 1;
  if (!outcome.stdout.endsWith('}\n') || outcome.stdout.includes('"ok":false')) return;
  const { json } = outcome;
  const body =
    json['encoding'] === 'base64' ? Buffer.from(String(json['body_base64']), 'base64') : Buffer.from(String(json['body']), 'utf8');
  assert.equal(digest(body), json['sha256']);
  read(id, body, json['refetch'] === true);
}

/** Lives of a daemon, each ended by `kill -9` at a random moment; some before it was ready. */
async function killAgainAndAgain(host: Host, count: 'sender' | 'receiver'): Promise<void> {
  for (let n = 0; n < DAEMON_KILLS && !hasFailed; n++) {
    if (random(3) > 0) await Promise.race([nextBatch(), delay(900)]);
    else await delay(random(900));
    await delay(random(10));
    await host.kill9();
    kills[count] += 1;
    if (random(6) === 0) {
      const starting = host.start({ direct: true }).catch(() => undefined); // killed before its ready line, perhaps
      await delay(random(350));
      await host.kill9();
      await starting;
      kills.starting += 1;
    }
    await host.start({ direct: true });
  }
}

async function allOf(host: Host, isSent: boolean): Promise<MessageRow[]> {
  const rows: MessageRow[] = [];
  for (;;) {
    const last: string | undefined = rows.at(-1)?.message_id;
    const page = await host.call<{ messages: MessageRow[] }>('message.list', {
      sent: isSent,
      limit: 500,
      ...(last === undefined ? {} : { before: last }),
    });
    rows.push(...page.messages);
    if (page.messages.length < 500) return rows;
  }
}

test('nothing is lost, doubled or told wrongly when daemons and commands are killed at random moments', async (t) => {
  const storm = Promise.all([killAgainAndAgain(a, 'sender'), killAgainAndAgain(b, 'receiver')]);
  const sends = Promise.all([sendAllFast(), sendAllByCli()]);
  const fetches = Promise.all([readAll(readFast), readAll(readByCli)]);
  const stormEnds = Promise.all([storm, sends]).then(() => {
    isStorm = false;
  });
  try {
    await Promise.all([stormEnds, fetches]);
  } catch (error) {
    hasFailed = true;
    await Promise.allSettled([storm, sends, fetches]);
    throw error;
  }
  const began = performance.now();
  await until(
    'the sender to know of every pickup',
    async () => {
      const open = (await allOf(a, true)).filter((row) => row.state !== 'fetched');
      return open.length === 0 ? true : `${open.length} open, the first ${JSON.stringify(open[0])}`;
    },
    SETTLE_LIMIT_MS,
  );
  const settledMs = performance.now() - began;

  const received = await allOf(b, false);
  const outbox = await allOf(a, true);
  const ids = received.map((row) => row.message_id);
  const stored = new Set(ids);
  const books = {
    lost: [...sent.keys()].filter((id) => !stored.has(id) || bodies.get(id) !== sent.get(id)),
    doubled: [...ids.filter((id, at) => ids.indexOf(id) !== at), ...[...stored].filter((id) => !sent.has(id))],
    // What either side shows at the end, against what the readers really did.
    false: [
      ...received.filter((row) => row.state !== 'fetched' || row.fetched_at === null || !printed.has(row.message_id)),
      ...outbox.filter((row) => row.state !== 'fetched' || !stored.has(row.message_id)),
    ].map((row) => row.message_id),
  };
  const total = Object.values(kills).reduce((sum, one) => sum + one, 0);
  t.diagnostic(
    `seed ${SEED}: ${total} kills (${Object.entries(kills)
      .map(([what, count]) => `${what} ${count}`)
      .join(', ')}), ${sent.size} messages, ${refetched} refetches; ${books.lost.length} lost, ${books.doubled.length} doubled, ${
      books.false.length
    } told wrongly; the sender knew all ${Math.round(settledMs)} ms after the last pickup`,
  );
  assert.deepEqual(books, { lost: [], doubled: [], false: [] });
  assert.deepEqual(outbox.map((row) => row.message_id).toSorted(), [...sent.keys()].toSorted(), 'one request made one message');
  assert.equal(total >= KILLS * 0.9, true, `only ${total} kills`);
  assert.equal(sent.size >= MESSAGES, true, `only ${sent.size} messages`);
  assert.equal(refetched > 0 && kills.send > 0 && kills.fetch > 0, true, 'the storm reached every kind of fault');
});

test('both logs tell each message of the storm in an order that can be, and each end once', async () => {
  for (const host of [a, b]) {
    const seen = new Map<string, string[]>();
    for (let since = 0; ;) {
      const page = await host.call<{ events: Json[]; next_seq: number }>('admin.events', { since, limit: 500 });
      for (const event of page.events) {
        if (event['message_id'] === null || !String(event['type']).startsWith('message.')) continue;
        seen.set(event['message_id'], [...(seen.get(event['message_id']) ?? []), String(event['type']).slice(8)]);
      }
      if (page.events.length < 500) break;
      since = page.next_seq;
    }
    assert.equal(seen.size, sent.size);
    const [first, once] = host === a ? ['queued', ['queued', 'fetched']] : ['received', ['received', 'fetched']];
    for (const [id, steps] of seen) {
      assert.equal(steps[0], first, `${id}: ${steps.join(', ')}`);
      assert.equal(steps.at(-1), 'fetched', `${id}: ${steps.join(', ')}`);
      for (const step of once) assert.equal(steps.filter((one) => one === step).length, 1, `${id}: ${steps.join(', ')}`);
    }
  }
});

test('a message whose deadline passes before its host is reached ends as expired, with the cause', async () => {
  const status = await isolated.untilStatus(late, { state: 'expired' }, 75_000);
  assert.deepEqual([status['uncertain'], status['cause'] === null], [false, false]);
  assert.equal(Number(status['remaining_ms'] ?? 0), 0);
  await isolated.refused(['admin', 'cancel', late], 'invalid_state');
});
