/**
 * What the channel for sandboxed sessions serves: `fetch ID`, and the confirmation of it, for a message that this host told that very
 * session about, while the session works. Off until a person turns it on.
 *
 * Owns the switch (durable), the codes of notices and the rates. A request proves nothing about who wrote it: what it can cause is
 * bounded instead. No byte of it names a path, a host or a text; all that a remote host can ever see of one is "fetched".
 * Invariant: what is not exactly such a request is dropped without an answer, and a dropped one changes nothing.
 */
import { goesIntoFile } from '../protocol/body.ts';
import { parseBoxLine } from '../protocol/box.ts';
import type { BoxRequest } from '../protocol/box.ts';
import { encode } from '../protocol/codec.ts';
import type { FetchedMessage, SandboxFetchState } from '../protocol/control.ts';
import { AxError, errorBody, toAxError } from '../protocol/errors.ts';
import { BOX_BURST, BOX_PER_SECOND, BOX_PER_SECOND_IN_ALL, MAX_BOX_ANSWERS } from '../protocol/limits.ts';
import { CONTROL_PROTOCOL } from '../protocol/version.ts';
import type { Box } from './box/box.ts';
import type { Clock, Random } from './clock/clock.ts';
import type { Discovery } from './discovery.ts';
import type { Events } from './events.ts';
import type { Inbox } from './inbox.ts';
import type { Received } from './received-row.ts';
import type { Log } from './log.ts';
import type { Notices, Pass } from './notices.ts';
import type { Pickup } from './pickup.ts';
import { getRow, pack } from './store/rows.ts';
import type { Store } from './store/store.ts';

export interface SandboxFetchDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
  /** Left out where there is no such channel. */
  readonly box: Box | undefined;
  readonly discovery: Discovery;
  readonly inbox: Inbox;
  readonly notices: Notices;
  readonly pickup: Pickup;
  readonly events: Events;
}

/** Of an answer: where a body lies whole, and what its reader compares it with. */
type Kept = Pick<FetchedMessage, 'kept' | 'sha256'>;

const KEY = 'sandbox_fetch';
/** A session that runs a command is one of these; an idle one runs none. */
const ACTIVE: ReadonlySet<string> = new Set(['busy', 'waiting']);

export class SandboxFetch {
  readonly #deps: SandboxFetchDeps;
  #isOpen = false;
  #reason: string | null = null;
  #changing: Promise<unknown> = Promise.resolve();
  #underWay = 0;
  #hasTold = false;
  /** Large bodies that are being put where their reader can see them, by sequence. */
  readonly #keeping = new Map<number, Promise<Kept>>();
  /** The last of them; never rejects. */
  #lastKept: Promise<unknown> = Promise.resolve();
  readonly #total: Bucket;
  readonly #ofSession = new Map<string, Bucket>();

  constructor(deps: SandboxFetchDeps) {
    this.#deps = deps;
    this.#total = new Bucket(deps.clock, BOX_PER_SECOND_IN_ALL, BOX_PER_SECOND_IN_ALL);
  }

  /** Opens the channel when the user has turned it on; that it cannot be opened is logged and shown, and the daemon goes on. */
  async start(): Promise<void> {
    const { box, log } = this.#deps;
    if (box === undefined) return;
    if (!this.#isEnabled()) return box.stop(); // what a crash left of an earlier one
    try {
      await this.#open(box);
    } catch (error) {
      this.#reason = toAxError(error).message;
      log.warn('the channel for sandboxed sessions cannot be opened', { reason: this.#reason });
    }
  }

  async stop(): Promise<void> {
    await this.#changing.catch(() => undefined); // told to whoever asked for the change
    this.#isOpen = false;
    await this.#deps.box?.stop();
  }

  state(): SandboxFetchState {
    return { enabled: this.#isEnabled(), open: this.#isOpen, reason: this.#reason };
  }

  /** Turns it on or off at once and for good; AxError `unsupported`, `invalid_state`, `store_full`: then nothing has changed. */
  async set(isOn: boolean): Promise<SandboxFetchState> {
    const change = this.#changing.then(
      () => this.#set(isOn),
      () => this.#set(isOn),
    );
    this.#changing = change;
    await change;
    return this.state();
  }

  /** A new code for a notice while the channel is open. */
  makeCode(): string | undefined {
    return this.#isOpen ? Buffer.from(this.#deps.random.bytes(16)).toString('hex') : undefined;
  }

  #isEnabled(): boolean {
    return getRow<{ on: boolean }>(this.#deps.store, 'meta', KEY)?.on === true;
  }

  async #set(isOn: boolean): Promise<void> {
    const { box, store, events, notices } = this.#deps;
    if (box === undefined) throw new AxError('unsupported', 'this system has no channel for sandboxed sessions');
    const wasOn = this.#isEnabled();
    if (isOn && !this.#isOpen) await this.#open(box);
    try {
      if (wasOn !== isOn)
        await store.write((tx) => {
          tx.put('meta', KEY, pack({ on: isOn }));
          if (!isOn) notices.forgetCodes(tx); // whoever turns it on again does not mean what was told before
          events.add(tx, { type: isOn ? 'sandbox_fetch.on' : 'sandbox_fetch.off' });
        });
    } finally {
      if (!this.#isEnabled()) {
        this.#isOpen = false;
        this.#reason = null;
        await box.stop();
      }
    }
  }

  async #open(box: Box): Promise<void> {
    await box.start({ onRequest: (line) => this.#take(line) });
    this.#isOpen = true;
    this.#reason = null;
    this.#deps.log.info('the channel for sandboxed sessions is open');
  }

  /** One line of the pipe. Never throws. */
  #take(line: Uint8Array): void {
    try {
      const request = parseBoxLine(line);
      if (request !== undefined && this.#isOpen) this.#consider(request);
    } catch (error) {
      this.#deps.log.error('a request of a sandboxed session could not be looked at', { reason: toAxError(error).message });
    }
  }

  #consider(request: BoxRequest): void {
    const pass = this.#deps.notices.pass(request.code);
    const row = pass === undefined ? undefined : this.#named(request, pass);
    if (pass === undefined || row === undefined || !this.#mayServe(pass.session)) return;
    this.#underWay += 1;
    this.#serve(request, pass, row)
      .catch((error: unknown) => this.#deps.log.warn('a sandboxed session was not served', { reason: toAxError(error).message }))
      .finally(() => (this.#underWay -= 1));
  }

  /** The message a request may be about: told to that very session under that very code. */
  #named(request: BoxRequest, pass: Pass): Received | undefined {
    if (pass.session !== request.thread) return undefined;
    const told = pass.messages.find((message) => message.id === request.id);
    const row = told === undefined ? undefined : this.#deps.inbox.get(told.sender, told.id);
    if (row === undefined || row.harness !== pass.harness || row.workspace !== pass.workspace) return undefined;
    const isOwnHandOut = row.handOuts.some((handOut) => handOut.token === request.handOut && handOut.session === pass.session);
    return request.handOut === undefined || isOwnHandOut ? row : undefined;
  }

  /** Counted only with a right code: nobody else can use up a session's rate. */
  #mayServe(session: string): boolean {
    const { clock, log } = this.#deps;
    if (this.#ofSession.size > MAX_BOX_ANSWERS) for (const [id, old] of this.#ofSession) if (old.isFull()) this.#ofSession.delete(id);
    const bucket = this.#ofSession.get(session) ?? new Bucket(clock, BOX_BURST, BOX_PER_SECOND);
    this.#ofSession.set(session, bucket);
    if (this.#underWay < MAX_BOX_ANSWERS && bucket.take() && this.#total.take()) return true;
    if (!this.#hasTold) log.warn('sandboxed sessions ask more often than they may', { session });
    this.#hasTold = true;
    return false;
  }

  async #serve(request: BoxRequest, pass: Pass, row: Received): Promise<void> {
    const { box } = this.#deps;
    if (box === undefined || !(await this.#isActive(pass))) return;
    let answer: object;
    try {
      answer = { ok: true, result: await this.#result(box, request, pass, row) };
    } catch (error) {
      answer = { ok: false, error: errorBody(toAxError(error)) };
    }
    if (this.#isOpen) await box.answer(request.nonce, encode({ v: CONTROL_PROTOCOL, id: 0, ...answer }));
  }

  /** Is the session live in that folder and at work right now, by a look of this moment? */
  async #isActive(pass: Pass): Promise<boolean> {
    const { sessions, silent } = await this.#deps.discovery.local();
    if ((silent as readonly string[]).includes(pass.harness)) return false;
    const session = sessions.find((one) => one.harness === pass.harness && one.sessionId === pass.session);
    return session !== undefined && session.workspace === pass.workspace && ACTIVE.has(session.status);
  }

  async #result(box: Box, request: BoxRequest, pass: Pass, row: Received): Promise<object> {
    const { pickup, notices } = this.#deps;
    if (request.handOut !== undefined) return pickup.confirm({ id: row.id, handOut: request.handOut });
    const fetched = await pickup.fetchFor(pass.session, row, (tx, listed) =>
      notices.extend(
        tx,
        request.code,
        listed.map(({ sender, id }) => ({ sender, id })),
      ),
    );
    if (fetched.parts === undefined) return { ...fetched, kept: goesIntoFile(fetched.body) ? await box.keep(row.id, fetched.body) : null };
    return { ...fetched, ...(await this.#keepLarge(box, row)) };
  }

  /** One copy of one large body at a time, whoever asks, and only one of each, however often its impatient reader does. */
  #keepLarge(box: Box, row: Received): Promise<Kept> {
    const underWay = this.#keeping.get(row.seq);
    if (underWay !== undefined) return underWay;
    const keeping = this.#lastKept.then(() => this.#copy(box, row)).finally(() => this.#keeping.delete(row.seq));
    this.#lastKept = keeping.catch(() => undefined); // told to whoever asked for that one
    this.#keeping.set(row.seq, keeping);
    return keeping;
  }

  async #copy(box: Box, row: Received): Promise<Kept> {
    const { body, sha256 } = await this.#deps.pickup.whole(row);
    return { kept: await box.keep(row.id, body), sha256 };
  }
}

/** A bucket of tokens: full at first, filled at a rate. */
class Bucket {
  readonly #clock: Clock;
  readonly #size: number;
  readonly #perSecond: number;
  #tokens: number;
  #at: number;

  constructor(clock: Clock, size: number, perSecond: number) {
    this.#clock = clock;
    this.#size = size;
    this.#perSecond = perSecond;
    this.#tokens = size;
    this.#at = clock.monotonic();
  }

  take(): boolean {
    this.#fill();
    if (this.#tokens < 1) return false;
    this.#tokens -= 1;
    return true;
  }

  isFull(): boolean {
    this.#fill();
    return this.#tokens >= this.#size;
  }

  #fill(): void {
    const now = this.#clock.monotonic();
    this.#tokens = Math.min(this.#size, this.#tokens + ((now - this.#at) * this.#perSecond) / 1000);
    this.#at = now;
  }
}
