/**
 * The life of the sessions in one simulated world: begun, ended, cleared, interrupted, unloaded, given other habits; all chosen by the seed.
 *
 * Owns what sessions there are and which of them acted on notices all their life. Sends and reads nothing.
 */
import type { Behaviour, SimAgents, SimSession } from './harness.ts';
import type { World } from './world.ts';

/** Folders of every host; `/alias` is a link to the first, `/silent` never has a session. */
export const WORKSPACES = ['/alpha', '/beta'] as const;
const BEHAVIOURS: readonly Behaviour[] = [
  'acts',
  'acts',
  'acts',
  'acts',
  'acts',
  'acts',
  'holds',
  'approves',
  'denies',
  'lapses',
  'blocks',
  'drops',
  'dies_before',
  'dies_after',
];

const CODEX_BEHAVIOURS: readonly Behaviour[] = [
  'acts',
  'acts',
  'acts',
  'acts',
  'acts',
  'drops',
  'unsure',
  'unsure',
  'interrupted',
  'interrupted',
  'unloads',
  'dies_before',
  'dies_after',
];

const behavioursOf = (agents: SimAgents): readonly Behaviour[] => (agents.kind === 'codex' ? CODEX_BEHAVIOURS : BEHAVIOURS);

export class Lives {
  readonly #world: World;
  /** Sessions that have acted on notices all their life. */
  readonly #willing = new Set<SimSession>();

  constructor(world: World) {
    this.#world = world;
  }

  /** One willing session at an address. */
  calm(agents: SimAgents, workspace: string): void {
    const there = agents.live.filter((session) => session.workspace === workspace);
    const kept = there.find((session) => this.#willing.has(session)); // one that once held or refused a notice may be left alone for good
    const keep = this.#world.chance(0.6) ? kept : undefined;
    for (const session of there) if (session !== keep) agents.end(session);
    const willing = keep ?? agents.add({ workspace, behaviour: 'acts' });
    if (!willing.isLoaded) agents.load(willing);
    agents.setStatus(willing, 'idle');
    if (agents.kind === 'codex' && this.#world.chance(0.4)) agents.interrupt(willing);
    if (willing.isPaused) this.#world.after(this.#world.between(1000, 30 * 60_000), () => agents.goOn(willing)); // its user was away
  }

  /** A session with habits of its own. */
  add(agents: SimAgents, workspace: string): void {
    const session = agents.add({
      workspace,
      behaviour: this.#world.pick(behavioursOf(agents)),
      status: this.#world.chance(0.8) ? 'idle' : 'busy',
      actDelayMs: this.#world.chance(0.8) ? this.#world.between(20, 3000) : this.#world.between(3000, 60_000),
      decideMs: this.#world.chance(0.7) ? this.#world.between(500, 30_000) : this.#world.between(30_000, 300_000),
    });
    if (session.behaviour === 'acts') this.#willing.add(session);
  }

  /** Something happens to a session of these, or another begins. */
  change(agents: SimAgents): void {
    const workspace = this.#world.pick(WORKSPACES);
    const session = agents.live.find((one) => one.workspace === workspace);
    if (session === undefined || this.#world.chance(0.35)) return this.add(agents, workspace);
    switch (this.#world.between(0, 3)) {
      case 0:
        return agents.end(session);
      case 1:
        return agents.kind === 'codex' ? this.#changeThread(agents, session) : agents.clear(session);
      case 2:
        if (!session.isLoaded) return agents.load(session);
        return agents.setStatus(session, session.status === 'idle' ? 'busy' : 'idle');
      default:
        session.behaviour = this.#world.pick(behavioursOf(agents));
        this.#willing.delete(session);
    }
  }

  /** What the user of a thread does with it. */
  #changeThread(threads: SimAgents, thread: SimSession): void {
    if (thread.isPaused) return threads.goOn(thread);
    if (!thread.isLoaded) return threads.load(thread);
    return thread.status === 'idle' && this.#world.chance(0.3) ? threads.unload(thread) : threads.interrupt(thread);
  }
}
