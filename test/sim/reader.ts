/**
 * A reading session of the simulation: does what a notice says, with the commands a model would run.
 *
 * Owns setup, fetch and confirm as the CLI makes them, and the ways in which a reader fails: it dies after the body came and
 * before it confirmed, fetches twice, confirms twice. Tells the checker each step before and after.
 */
import type { Actor } from '../../daemon/addressing.ts';
import type { FetchedMessage, WaitingRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import type { Checker } from './checker.ts';
import type { Faults } from './faults.ts';
import { Gone } from './fleet.ts';
import type { Fleet, Host } from './fleet.ts';
import type { SimSession } from './harness.ts';
import type { World } from './world.ts';

export interface Reading {
  readonly world: World;
  readonly fleet: Fleet;
  readonly checker: Checker;
  readonly faults: Faults;
  /** Nothing goes wrong with this reader. */
  readonly careful: boolean;
}

/** A caller inside the shell of a session. */
export function actorOf(session: SimSession): Actor {
  const { harness, sessionId, workspace } = session;
  const own = harness === 'codex' ? { pid: null, socket: null } : { pid: session.pid, socket: session.socket };
  return {
    origin: { harness, harness_version: 'sim', session_id: sessionId, workspace, integration: 'cli' },
    session: { harness, session_id: sessionId, ...own, config_dir: null },
  };
}

/** Runs the command in a notice, then what its output says is next, until nothing waits or something fails. */
export async function readNotice(reading: Reading, host: Host, session: SimSession, text: string): Promise<void> {
  const setup = /agent setup --name (\S+) --workspace (\S+)$/.exec(text);
  const fetch = /messages fetch (\S+) --workspace (\S+?)(?: --code \S+)?$/.exec(text);
  const queue: string[] = [];
  try {
    if (setup !== null) queue.push(...(await setUp(reading, host, session, setup[1]!, setup[2]!)));
    else if (fetch !== null) queue.push(fetch[1]!);
    else reading.checker.fail('a notice holds a command', text);
    const done = new Set<string>();
    for (const id of queue) {
      if (done.has(id)) continue;
      done.add(id);
      for (const other of await readOne(reading, host, session, id)) queue.push(other);
      if (!reading.careful && reading.world.chance(0.1)) return; // it has other things to do
    }
  } catch (error) {
    if (!(error instanceof Gone) && !(error instanceof AxError)) throw error;
  }
}

/** A command of the session itself: from it the session knows what waits. */
async function command(
  reading: Reading,
  host: Host,
  session: SimSession,
  method: string,
  params: Readonly<Record<string, unknown>>,
): Promise<Record<string, unknown>> {
  const { checker, fleet } = reading;
  const { sessionId } = session;
  checker.touching(sessionId);
  try {
    return await fleet.call(host, method, params, actorOf(session));
  } finally {
    checker.touched(sessionId);
  }
}

/** Sets the session up, under the agent's own name when it has another one; the ids that wait. */
async function setUp(reading: Reading, host: Host, session: SimSession, name: string, workspace: string): Promise<string[]> {
  let result: Record<string, unknown>;
  try {
    result = await command(reading, host, session, 'agent.setup', { name, workspace });
  } catch (error) {
    // The folder's agent has another name, or the name is that of another folder's or harness's agent.
    const details = error instanceof AxError ? error.details : undefined;
    const taken = details?.['name'] ?? (details?.['workspace'] === undefined ? undefined : `${name}-${session.harness}`);
    if (typeof taken !== 'string' || taken === name) throw error;
    result = await command(reading, host, session, 'agent.setup', { name: taken, workspace });
  }
  return (result['waiting'] as WaitingRow[]).map((row) => row.message_id);
}

/** Fetches and confirms one message; what else waits. */
async function readOne(reading: Reading, host: Host, session: SimSession, id: string): Promise<string[]> {
  const { world, fleet, checker, faults, careful } = reading;
  let result: FetchedMessage;
  try {
    result = await fetchOnce(reading, host, session, id);
  } catch (error) {
    if (!(error instanceof AxError)) throw error;
    if (error.code === 'expired' || error.code === 'message_not_found') return [];
    if (error.code !== 'invalid_state' || error.details?.['state'] !== undefined) throw error;
    const waiting = await setUp(reading, host, session, session.workspace.slice(1), session.workspace);
    if (!waiting.includes(id)) return waiting;
    result = await fetchOnce(reading, host, session, id);
  }
  const waiting = result.waiting.map((row) => row.message_id);
  const tokens = [result.hand_out];
  if (!careful && world.chance(0.08)) {
    fleet.count('died between hand-out and confirm');
    return waiting;
  }
  if (!careful && world.chance(0.08)) tokens.push((await fetchOnce(reading, host, session, id)).hand_out);
  if (!careful && world.chance(0.2)) await fleet.sleep(world.between(1, 5000));
  const token = world.pick(tokens);
  for (let again = !careful && world.chance(0.06) ? 2 : 1; again > 0; again--) {
    checker.confirmBegun(host, id, token);
    faults.moment(host, 'confirm');
    try {
      await fleet.call(host, 'message.confirm', { id, hand_out: token });
    } catch (error) {
      if (error instanceof Gone) fleet.count('crash between hand-out and confirm');
      throw error;
    }
    checker.confirmed(host, id, result.from_host);
  }
  return waiting;
}

async function fetchOnce(reading: Reading, host: Host, session: SimSession, id: string): Promise<FetchedMessage> {
  const { checker, faults } = reading;
  const begun = checker.begun(host, id);
  checker.fetchBegun(host, id);
  faults.moment(host, 'handed out');
  const result = (await command(reading, host, session, 'message.fetch', {
    id,
    workspace: session.workspace,
  })) as unknown as FetchedMessage;
  const before = checker.tokens(host, id);
  checker.fetched(host, await withParts(reading.fleet, host, result), begun, before);
  return result;
}

/** A fetched message with its body: a large one is asked for part by part. */
export async function withParts(fleet: Fleet, host: Host, fetched: FetchedMessage): Promise<FetchedMessage> {
  const { message_id: id, from_host: fromHost, hand_out, parts = 0 } = fetched;
  if (parts === 0) return fetched;
  const found: Uint8Array[] = [];
  for (let index = 0; index < parts; index++) {
    const { body } = await fleet.call(host, 'message.part', { id, from_host: fromHost, hand_out, index });
    found.push(body as Uint8Array);
  }
  fleet.count('body in parts');
  return { ...fetched, body: new Uint8Array(Buffer.concat(found)) };
}
