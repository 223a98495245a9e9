/**
 * The books of scenarios: many messages sent and read over the control sockets, and both hosts' word about each compared.
 *
 * Truth meanwhile: a sender says accepted only of what the receiver has, and what the receiver has is at least uncertain at the sender.
 * Truth at the end: the receiver has exactly what was sent, each once and whole, and both sides name the same state.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import type { FetchedMessage, MessageRow, SessionEnvironment } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { Lost } from '../e2e/client.ts';
import { until, type Host } from '../e2e/hosts.ts';
import type { Json } from '../e2e/processes.ts';

const PERSIST_MS = 60_000;

/** Messages from one host to one folder of another: id to SHA-256 of the body. */
export interface Post {
  readonly from: Host;
  readonly to: Host;
  readonly workspace: string;
  readonly sent: Map<string, string>;
}

export function post(from: Host, to: Host, workspace = to.workspace('work')): Post {
  return { from, to, workspace, sent: new Map() };
}

let keys = 0;

/** Sends `count` messages at once and resolves when all are queued; a daemon that is killed meanwhile is asked again, by the same key. */
export async function send(mail: Post, count: number, params: Record<string, unknown> = {}): Promise<string[]> {
  return Promise.all(Array.from({ length: count }, () => sendOne(mail, params)));
}

async function sendOne({ from, to, workspace, sent }: Post, params: Record<string, unknown>): Promise<string> {
  const key = `net-${process.pid}-${keys++}`;
  const body = Buffer.from(`${key} ${'.'.repeat((keys * 37) % 300)}`);
  const what = { host: to.name, workspace, harness: 'claude', kind: 'message', body, request_id: key, ...params };
  const queued = await persist(() => from.call<{ message_id: string }>('message.send', what));
  assert.equal(sent.has(queued.message_id), false, 'two requests made one message');
  sent.set(queued.message_id, createHash('sha256').update(body).digest('hex'));
  return queued.message_id;
}

/** Repeats a request until its daemon, which may be killed and started meanwhile, has answered. */
async function persist<T>(work: () => Promise<T>): Promise<T> {
  const end = performance.now() + PERSIST_MS;
  for (;;) {
    try {
      return await work();
    } catch (error) {
      const isPassing = error instanceof Lost || (error instanceof AxError && error.code === 'shutting_down');
      if (!isPassing || performance.now() > end) throw error;
      await delay(20);
    }
  }
}

/** Every row of one side, whatever its state. */
export async function rowsOf(host: Host, isSent: boolean): Promise<MessageRow[]> {
  const rows: MessageRow[] = [];
  for (;;) {
    const last = rows.at(-1)?.message_id;
    const params = { sent: isSent, limit: 500, ...(last === undefined ? {} : { before: last }) };
    const page = await host.call<{ messages: MessageRow[] }>('message.list', params);
    rows.push(...page.messages);
    if (page.messages.length < 500) return rows;
  }
}

/** Waits until the sender says `state` of every message; gives the ms it took. */
export async function untilAll({ from, to, sent }: Post, state: string, limitMs = 90_000): Promise<number> {
  const began = performance.now();
  await until(
    `every message of ${from.name} to ${to.name} to be ${state}`,
    async () => {
      const rows = (await rowsOf(from, true)).filter((row) => sent.has(row.message_id));
      const others = rows.filter((row) => row.state !== state);
      return rows.length === sent.size && others.length === 0 ? true : `${others.length} others, the first ${JSON.stringify(others[0])}`;
    },
    limitMs,
  );
  return performance.now() - began;
}

/** A session picks up whatever is there and comes until it has all; each body is given once, whole. */
export async function readAll(mail: Post, session: SessionEnvironment, limitMs = 90_000): Promise<void> {
  const { to, workspace, sent } = mail;
  const read = new Set<string>();
  await until(
    `${to.name} to read ${sent.size} messages`,
    async () => {
      const { messages } = await to.call<{ messages: MessageRow[] }>('message.list', { workspace, state: 'available', limit: 500 });
      for (const { message_id: id } of messages) {
        const fetched = await to.call<FetchedMessage>('message.fetch', { id, workspace }, session);
        assert.deepEqual([fetched.refetch, read.has(id), fetched.sha256], [false, false, sent.get(id)], id);
        await to.call('message.confirm', { id, hand_out: fetched.hand_out });
        read.add(id);
      }
      return read.size === sent.size ? true : `${read.size} read`;
    },
    limitMs,
  );
}

async function statusOf(host: Host, id: string): Promise<Json | undefined> {
  try {
    return await host.call('admin.message_status', { id });
  } catch (error) {
    if (error instanceof AxError && error.code === 'message_not_found') return undefined;
    throw error;
  }
}

/** Truth meanwhile, see the header; gives how many of the messages the receiver has and how many the sender calls accepted. */
export async function assertTruthful({ from, to, sent }: Post): Promise<{ readonly there: number; readonly accepted: number }> {
  let there = 0;
  let accepted = 0;
  const isAccepted = (status: Json | undefined): boolean => status?.['state'] === 'accepted' || status?.['state'] === 'fetched';
  for (const id of sent.keys()) {
    const before = await statusOf(from, id);
    const atReceiver = await statusOf(to, id);
    const afterwards = await statusOf(from, id);
    assert.notEqual(before, undefined, `${id} is lost at its sender`);
    if (isAccepted(before)) assert.notEqual(atReceiver, undefined, `${id} is accepted, and the receiver has never seen it`);
    if (atReceiver !== undefined)
      assert.ok(
        isAccepted(afterwards) || afterwards?.['uncertain'] === true,
        `${id} is there, and its sender says ${JSON.stringify(afterwards)}`,
      );
    there += atReceiver === undefined ? 0 : 1;
    accepted += isAccepted(before) ? 1 : 0;
  }
  return { there, accepted };
}

/** Truth at the end: of everything that was sent to one receiver, see the header. */
export async function assertBooks(...mails: readonly Post[]): Promise<void> {
  for (const to of new Set(mails.map((mail) => mail.to))) {
    const ids = (await rowsOf(to, false)).map((row) => row.message_id);
    assert.equal(new Set(ids).size, ids.length, `${to.name} has a message twice`);
    const wanted = mails.filter((mail) => mail.to === to).flatMap((mail) => [...mail.sent.keys()]);
    assert.deepEqual(ids.toSorted(), wanted.toSorted(), `${to.name} has exactly what was sent to it`);
  }
  for (const { from, to, workspace, sent } of mails) {
    for (const [id, sha256] of sent) {
      const [mine, theirs] = [await statusOf(from, id), await statusOf(to, id)];
      assert.ok(mine?.['state'] === 'accepted' || mine?.['state'] === 'fetched', `${id}: ${JSON.stringify(mine)}`);
      assert.equal(mine['state'] === 'fetched', theirs?.['state'] === 'fetched', `${id}: ${JSON.stringify([mine, theirs])}`);
      assert.deepEqual([mine['receiver_state'], mine['uncertain']], [theirs?.['state'], false], id);
      const read = await to.call<FetchedMessage>('message.fetch', { id, workspace }); // an owner's look changes nothing
      assert.deepEqual([read.by, read.sha256], ['owner', sha256], id);
    }
  }
}
