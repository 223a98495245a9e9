/**
 * The stand-in's traces on disk: its record, its key file, and their life cycle as the genuine program was seen to keep them.
 *
 * Owns folders, modes, in-place rewriting, and the broken records a test may ask for. The pid and start ticks are this
 * process's own, so a `kill -9` leaves exactly what a crash leaves.
 */
import { createHash, randomBytes } from 'node:crypto';
import { chmodSync, mkdirSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { StandInOptions } from './options.ts';

export interface Live {
  readonly sessionId: string;
  /** Undefined: not recorded (yet). */
  readonly status: string | undefined;
  readonly waitingFor: string | undefined;
}

export class Traces {
  readonly procStart: string;
  readonly socket: string;
  readonly record: string;
  readonly peerToken = randomBytes(16).toString('hex');
  readonly #options: StandInOptions;
  readonly #key: string;
  readonly #startedAt = Date.now();
  readonly #pidDomain: string;
  #statusSince = this.#startedAt;
  #status: string | undefined;
  #isFrozen = false;

  constructor(options: StandInOptions) {
    this.#options = options;
    this.procStart = options.procStart ?? ownStart();
    this.#pidDomain = options.pidDomain ?? ownDomain();
    this.socket = join(options.socketDir, `${process.pid}.sock`);
    const sessions = join(options.configDir, 'sessions');
    this.record = join(sessions, `${process.pid}.json`);
    this.#key = join(sessions, `${process.pid}.${createHash('sha256').update(this.socket).digest('hex')}.key`);
    for (const folder of [sessions, options.socketDir]) {
      if (mkdirSync(folder, { recursive: true, mode: 0o700 }) !== undefined) chmodSync(folder, 0o700);
    }
  }

  get hasSocket(): boolean {
    return this.#options.bare !== true && this.#options.old !== 'no-socket';
  }

  writeKey(): void {
    const key = { peerToken: this.peerToken, procStart: this.procStart, pidDomain: this.#pidDomain };
    writeFileSync(this.#key, JSON.stringify(key), { mode: 0o600 });
  }

  /** Rewrites the record in place: the same file, for a moment short. */
  write(live: Live): void {
    if (this.#isFrozen) return;
    writeFileSync(this.record, this.#text(live), { mode: 0o644 });
  }

  /** Leaves half a record until `thaw`. */
  truncate(live: Live): void {
    const text = this.#text(live);
    this.freeze(text.slice(0, text.length / 2));
  }

  /** Leaves `text` as the record until `thaw`. */
  freeze(text: string): void {
    this.#isFrozen = true;
    writeFileSync(this.record, text);
  }

  thaw(live: Live): void {
    this.#isFrozen = false;
    this.write(live);
  }

  /** What a proper exit does. */
  remove(): void {
    for (const path of [this.record, this.#key, this.socket]) rmSync(path, { force: true });
  }

  #text(live: Live): string {
    const options = this.#options;
    const now = Date.now();
    if (live.status !== this.#status) this.#statusSince = now;
    this.#status = live.status;
    return JSON.stringify({
      pid: process.pid,
      sessionId: live.sessionId,
      cwd: options.cwd,
      startedAt: this.#startedAt,
      procStart: this.procStart,
      version: options.version ?? '2.1.332',
      peerProtocol: options.peerProtocol ?? 1,
      peerFeatures: ['notify_idle', 'reply_across_default_dirs', 'artifact_yield'],
      kind: options.kind ?? 'interactive',
      entrypoint: options.entrypoint ?? 'cli',
      pidDomain: this.#pidDomain,
      asksForConvertedSkills: null,
      ...(options.kind === 'bg' ? { jobId: live.sessionId.slice(0, 8) } : {}),
      ...(this.hasSocket ? { messagingSocketPath: this.socket } : {}),
      name: options.name ?? 'standin-95',
      nameSource: options.name === undefined ? 'derived' : 'user',
      nameSince: this.#startedAt,
      ...(live.status === undefined || options.old === 'no-status' ? {} : { status: live.status, statusUpdatedAt: this.#statusSince }),
      ...(live.waitingFor === undefined ? {} : { waitingFor: live.waitingFor }),
      updatedAt: now,
    });
  }
}

function ownStart(): string {
  if (process.platform !== 'linux') return String(Math.floor(Date.now() - process.uptime() * 1000));
  const stat = readFileSync('/proc/self/stat', 'latin1');
  return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19] ?? '';
}

function ownDomain(): string {
  if (process.platform !== 'linux') return `${process.platform}:${'0'.repeat(32)}`;
  return `linux:${'0'.repeat(32)}:${readlinkSync('/proc/self/ns/pid')}`;
}
