/**
 * What people and agents do in one simulated world: pair, send, reply, read, cancel, look, all chosen by the seed.
 *
 * Owns the clients and their bad habits (lost answers retried under the same request id, readers that die between hand-out and
 * confirm, owners that read along) and the life of the sessions. Tells the checker every fact; judges nothing itself.
 */
import type { Notice } from '../../daemon/harness/harness.ts';
import type { FetchedMessage, MessageRow } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { MAX_PIECE_BYTES } from '../../protocol/limits.ts';
import type { Ask, Checker } from './checker.ts';
import type { Faults } from './faults.ts';
import { Gone, OWNER } from './fleet.ts';
import type { Fleet, Host } from './fleet.ts';
import { readNotice, actorOf, withParts } from './reader.ts';
import type { SimAgents, SimSession } from './harness.ts';
import { Lives, WORKSPACES } from './lives.ts';
import { Owners } from './owners.ts';
import { Pairs, untilAnswered } from './pairs.ts';
import type { World } from './world.ts';

type Params = Record<string, unknown>;

export class Workload {
  readonly #world: World;
  readonly #fleet: Fleet;
  readonly #checker: Checker;
  readonly #faults: Faults;
  readonly #pairs: Pairs;
  /** Sends whose client still wants to know. */
  readonly #unanswered: { readonly ask: Ask; readonly method: string; readonly params: Params; readonly session: SimSession | null }[] = [];
  readonly #lives: Lives;
  readonly #owners: Owners;
  #running = 0;
  #number = 0;
  /** From here on every reader is willing and every client careful. */
  #careful = false;

  constructor(fleet: Fleet, checker: Checker, faults: Faults) {
    this.#world = fleet.world;
    this.#fleet = fleet;
    this.#checker = checker;
    this.#faults = faults;
    this.#pairs = new Pairs(fleet);
    this.#lives = new Lives(fleet.world);
    this.#owners = new Owners(fleet, checker, this.#pairs);
    for (const host of fleet.hosts) {
      for (const path of [...WORKSPACES, '/silent']) host.folders.set(path, path);
      host.folders.set('/alias', WORKSPACES[0]);
      host.limits = this.#owners.limits();
    }
  }

  /** Pairs the hosts, now or some of them later. */
  pair(): void {
    for (const { afterMs, meet } of this.#pairs.plan()) this.#world.after(afterMs, () => this.#do('pairing', meet));
  }

  /** Everything that shall happen within `spanMs`, at times chosen by the seed. */
  schedule(spanMs: number): void {
    const { hosts } = this.#fleet;
    for (const host of hosts) {
      for (const workspace of WORKSPACES) {
        if (this.#world.chance(0.8)) this.#lives.add(host.agents, workspace);
        if (this.#world.chance(0.5)) this.#lives.add(host.threads, workspace);
      }
    }
    const acts: readonly (readonly [number, () => Promise<void>])[] = [
      [14, async () => void (await this.#send())],
      [6, () => this.#sendThenCancel()],
      [3, () => this.#reply()],
      [3, () => this.#cancelAny()],
      [4, () => this.#readUnasked()],
      [3, () => this.#ownerReads()],
      [4, () => this.#look()],
      [2, () => this.#wait()],
      [5, async () => this.#lives.change(this.#agentsOf(this.#someone()))],
      [1, () => this.#agents()],
      [8, () => this.#owners.act()],
    ];
    const weight = acts.reduce((sum, [each]) => sum + each, 0);
    const count = this.#world.between(20, 50);
    for (let i = 0; i < count; i++) {
      let drawn = this.#world.random() * weight;
      const [, act] = acts.find(([each]) => (drawn -= each) < 0) ?? acts[0]!;
      this.#world.after(this.#world.random() * spanMs, () => this.#do('act', act));
    }
  }

  get isIdle(): boolean {
    return this.#running === 0;
  }

  /** After the faults: every client asks again until it is answered, hosts that lack a grant perhaps get it, sessions are willing. */
  async settle(): Promise<void> {
    this.#careful = true;
    while (!this.isIdle) await this.#fleet.sleep(1000); // the last pairings and turns
    for (const open of this.#unanswered.splice(0))
      await untilAnswered(this.#fleet, () => this.#deliver(open.ask, open.method, open.params, open.session), 40);
    await this.#owners.settle();
    const { hosts } = this.#fleet;
    for (const a of hosts) {
      for (const b of hosts) {
        if (a === b || !this.#world.chance(0.5)) continue;
        await this.#pairs.add(a, b, undefined);
      }
    }
    for (const host of hosts) {
      for (const agents of [host.agents, host.threads]) for (const workspace of WORKSPACES) this.#lives.calm(agents, workspace);
    }
  }

  /** A session acts on a notice: the part of a model. */
  async act(host: Host, session: SimSession, notice: Notice): Promise<void> {
    this.#running++;
    try {
      await readNotice(
        { world: this.#world, fleet: this.#fleet, checker: this.#checker, faults: this.#faults, careful: this.#careful },
        host,
        session,
        notice.text,
      );
    } finally {
      this.#running--;
    }
  }

  // --- running things --------------------------------------------------------------------------------------------------------

  #do(what: string, act: () => Promise<void>): void {
    this.#running++;
    act().then(
      () => void this.#running--,
      (error: unknown) => {
        this.#running--;
        if (error instanceof Gone || error instanceof AxError) return;
        this.#world.note(`${what} failed`);
        this.#world.faults.push(error);
      },
    );
  }

  #someone(): Host {
    return this.#world.pick(this.#fleet.hosts);
  }

  /** Sessions of Claude Code, or threads of Codex. */
  #agentsOf(host: Host): SimAgents {
    return this.#world.chance(0.3) ? host.threads : host.agents;
  }

  // --- sending ---------------------------------------------------------------------------------------------------------------

  #body(key: string): Uint8Array {
    const drawn = this.#world.random();
    const size =
      drawn < 0.93
        ? this.#world.between(1, 200)
        : drawn < 0.99
          ? this.#world.between(10_000, 40_000)
          : drawn < 0.998
            ? 300_000
            : MAX_PIECE_BYTES - key.length - 1;
    return new Uint8Array(Buffer.concat([Buffer.from(`${key}|`, 'latin1'), Buffer.alloc(size, this.#world.between(0, 255))]));
  }

  async #send(): Promise<Ask | undefined> {
    const from = this.#someone();
    const others = this.#fleet.hosts.filter((host) => host !== from);
    const to = this.#world.chance(0.78) ? this.#world.pick(others) : from;
    const key = `w${this.#world.seed}.${++this.#number}`;
    const drawn = this.#world.random();
    const agents = this.#agentsOf(to);
    const sessions = agents.live;
    const typed = drawn < 0.05 ? '/nowhere' : drawn < 0.1 ? '/alias' : drawn < 0.16 ? '/silent' : this.#world.pick(WORKSPACES);
    const host = to === from ? 'Localhost' : to.name;
    const target = sessions[this.#world.between(0, Math.max(0, sessions.length - 1))];
    const bySession = this.#world.chance(0.25) && target !== undefined;
    const where: Params = bySession
      ? { host, harness: agents.kind, session: target.sessionId }
      : this.#world.chance(0.1)
        ? { to: `${agentName(typed)}@${host}` }
        : { host, harness: agents.kind, workspace: typed };
    const workspace = bySession ? target.workspace : typed === '/alias' && where['to'] === undefined ? WORKSPACES[0] : typed;
    const own = this.#agentsOf(from).live[0];
    const session = own !== undefined && this.#world.chance(0.4) ? own : null;
    const params: Params = { ...where, request_id: key, body: this.#body(key) };
    if (this.#world.chance(0.15)) params['deadline_ms'] = this.#world.between(5000, 120_000);
    if (this.#world.chance(0.15)) params['retention_ms'] = this.#world.between(5000, 120_000);
    if (this.#world.chance(0.1)) params['kind'] = 'note';
    if (this.#world.chance(0.3)) params['subject'] = `about ${key}`;
    if (session === null && this.#world.chance(0.3)) params['local_workspace'] = this.#world.pick(WORKSPACES);
    const times = { deadlineMs: params['deadline_ms'] as number | undefined, retentionMs: params['retention_ms'] as number | undefined };
    const ask: Ask = { key, from, to, body: params['body'] as Uint8Array, workspace, id: undefined, ...times };
    this.#checker.asked(ask);
    await this.#persist(ask, 'message.send', params, session);
    return ask.id === undefined ? undefined : ask;
  }

  /** Sends until it is answered, sometimes with a client that gives up early; after some tries it is left for the end. */
  async #persist(ask: Ask, method: string, params: Params, session: SimSession | null): Promise<void> {
    this.#faults.moment(ask.from, 'send');
    for (let tries = 0; tries < 6; tries++) {
      try {
        return await this.#deliver(ask, method, params, session, this.#world.chance(0.12) ? this.#world.between(1, 60) : undefined);
      } catch (error) {
        if (error instanceof AxError && !error.retryable) return;
        if (!(error instanceof Gone) && !(error instanceof AxError)) throw error;
        await this.#fleet.sleep(this.#world.chance(0.5) ? this.#world.between(0, 30) : this.#world.between(30, 4000));
      }
    }
    this.#unanswered.push({ ask, method, params, session });
  }

  async #deliver(ask: Ask, method: string, params: Params, session: SimSession | null, patienceMs?: number): Promise<void> {
    const answer = await this.#fleet.call(
      ask.from,
      method,
      params,
      session === null || !session.isAlive ? OWNER : actorOf(session),
      patienceMs,
    );
    if (answer['replayed'] === true) this.#fleet.count('replayed');
    this.#checker.sendReturned(ask, String(answer['message_id']));
  }

  async #sendThenCancel(): Promise<void> {
    const ask = await this.#send();
    if (ask?.id === undefined) return;
    if (this.#world.chance(0.1)) await this.#untilHandedOut(ask.to, ask.id);
    else await this.#fleet.sleep(this.#world.chance(0.6) ? this.#world.between(0, 60) : this.#world.between(60, 20_000));
    await this.#cancel(ask.from, ask.id);
  }

  /** A cancel that comes now is too late, and only the receiver's host can say so: the news of the hand-out is still on its way. */
  async #untilHandedOut(host: Host, id: string): Promise<void> {
    for (let looks = 0; looks < 2000 && this.#checker.tokens(host, id) === 0; looks++) await this.#fleet.sleep(10);
  }

  async #reply(): Promise<void> {
    const host = this.#someone();
    const rows = await this.#list(host, false);
    const row = rows.find((one) => one.from.includes('@'));
    if (row === undefined) return;
    const shown = await this.#fleet.call(host, 'message.fetch', { id: row.message_id }); // an owner looks at it first
    const fetched = shown as unknown as FetchedMessage;
    const before = this.#checker.tokens(host, row.message_id);
    const whole = await withParts(this.#fleet, host, fetched);
    this.#checker.fetched(host, whole, this.#checker.begun(host, row.message_id), before);
    if (!fetched.can_reply) return;
    const name = fetched.from.slice(0, fetched.from.indexOf('@'));
    const workspace = WORKSPACES.find((one) => agentName(one) === name);
    if (workspace === undefined) return;
    const key = `w${this.#world.seed}.${++this.#number}`;
    const ask: Ask = {
      key,
      from: host,
      to: this.#fleet.hosts.find((one) => one.id === fetched.from_host)!,
      body: this.#body(key),
      workspace,
      id: undefined,
    };
    this.#checker.asked(ask);
    await this.#persist(ask, 'message.reply', { id: row.message_id, request_id: key, body: ask.body }, null);
  }

  async #cancelAny(): Promise<void> {
    const sent = [...this.#checker.asks.values()].filter((ask) => ask.id !== undefined);
    if (sent.length === 0) return;
    const ask = this.#world.pick(sent);
    await this.#cancel(ask.from, ask.id!);
    if (this.#world.chance(0.3)) await this.#cancel(ask.from, ask.id!);
  }

  async #cancel(host: Host, id: string): Promise<void> {
    this.#faults.moment(host, 'cancel');
    const answer = await this.#fleet.call(host, 'admin.cancel', { id });
    this.#fleet.count(`cancel says ${String(answer['state'])}`);
    this.#checker.cancelReturned(host, id, String(answer['state']));
  }

  // --- reading and looking ---------------------------------------------------------------------------------------------------

  /** A session looks for messages without having been told. */
  async #readUnasked(): Promise<void> {
    const host = this.#someone();
    const session = this.#agentsOf(host).live[0];
    if (session === undefined) return;
    const isOwn = (row: MessageRow): boolean => row.workspace === session.workspace && row.harness === session.harness;
    const rows = (await this.#list(host, false)).filter(isOwn);
    const row = rows[this.#world.between(0, Math.max(0, rows.length - 1))];
    const command =
      row === undefined || this.#world.chance(0.2)
        ? `agent setup --name ${agentName(session.workspace)} --workspace ${session.workspace}`
        : `messages fetch ${row.message_id} --workspace ${session.workspace}`;
    await readNotice(
      { world: this.#world, fleet: this.#fleet, checker: this.#checker, faults: this.#faults, careful: false },
      host,
      session,
      command,
    );
  }

  async #ownerReads(): Promise<void> {
    const host = this.#someone();
    const rows = await this.#list(host, false);
    if (rows.length === 0) return;
    const { message_id: id } = this.#world.pick(rows);
    const begun = this.#checker.begun(host, id);
    const result = (await this.#fleet.call(host, 'message.fetch', { id })) as unknown as FetchedMessage;
    const begunAt = Math.max(begun, this.#checker.begun(host, id));
    const before = this.#checker.tokens(host, id);
    this.#checker.fetched(host, await withParts(this.#fleet, host, result), begunAt, before);
  }

  async #list(host: Host, sent: boolean): Promise<readonly MessageRow[]> {
    const answer = await this.#fleet.call(host, 'message.list', { sent, limit: 500 });
    const rows = answer['messages'] as MessageRow[];
    for (const row of rows) this.#checker.shown(host, sent ? 'sender' : 'receiver', row.message_id, row.state, row.from);
    return rows;
  }

  async #look(): Promise<void> {
    const host = this.#someone();
    await this.#list(host, true);
    await this.#list(host, false);
    await this.#fleet.call(host, 'admin.status', {});
    await this.#fleet.call(host, 'admin.events', { since: 0, limit: 500, wait_ms: 0 });
    await this.#fleet.call(host, 'agent.sessions', {});
    this.#checker.sample();
  }

  async #wait(): Promise<void> {
    const sent = [...this.#checker.asks.values()].filter((ask) => ask.id !== undefined);
    if (sent.length === 0) return;
    const ask = this.#world.pick(sent);
    const status = await this.#fleet.call(ask.from, 'message.wait', {
      id: ask.id,
      until: this.#world.pick(['accepted', 'fetched']),
      timeout_ms: this.#world.between(0, 25_000),
    });
    this.#checker.shown(
      ask.from,
      status['side'] === 'sender' ? 'sender' : 'receiver',
      String(status['message_id']),
      String(status['state']),
      status['side'] === 'sender' ? 'self' : ask.from.name,
    );
  }

  async #agents(): Promise<void> {
    const host = this.#someone();
    if (this.#world.chance(0.5)) await this.#fleet.call(host, 'agent.list', {});
    else await this.#fleet.call(host, 'agent.remove', { name: agentName(this.#world.pick(WORKSPACES)) });
  }
}

/** What the notifier proposes for a folder, and what these agents use. */
export function agentName(workspace: string): string {
  return workspace.slice(1);
}
