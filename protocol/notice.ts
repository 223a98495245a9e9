/**
 * The text of a notice, the commands in it, and the commands ax prints as the next thing to do: made here and nowhere else.
 *
 * Owns that no byte of a notice is chosen by a sender: fixed words, an id made by ax, and the workspace, which is a folder
 * of this host and is refused at setup when a shell or the wrapper could read it as more than a word.
 */
import { AxError } from './errors.ts';
import type { MessageId } from './ids.ts';
import { isNoticeSafe, shellQuote } from './paths.ts';

/** How this host's ax is called: `program` is `ax` when it is on a usual PATH, else an absolute path. */
export interface AxCommand {
  readonly program: string;
  /** Set when it is not the default folder. */
  readonly stateDir?: string;
}

/** Folders every login shell has on its PATH. */
export const USUAL_PATH: readonly string[] = ['/usr/local/bin', '/usr/bin', '/bin', '/opt/homebrew/bin'];

/** A command of this ax, ready for a POSIX shell, with the state folder where it is not the usual one. */
export function axCommand(ax: AxCommand, ...rest: readonly string[]): string {
  const state = ax.stateDir === undefined ? [] : ['--state-dir', ax.stateDir];
  return [ax.program, ...state, ...rest].map(shellQuote).join(' ');
}

/** AxError `invalid_argument` when a path cannot stand in a notice. */
export function requireNoticeSafe(path: string, what: string): void {
  if (!isNoticeSafe(path))
    throw new AxError(
      'invalid_argument',
      `${what} must not contain control characters, "<", ">", "$" or a backtick: it is part of a command`,
    );
}

export function setupCommand(ax: AxCommand, name: string, workspace: string): string {
  return axCommand(ax, 'agent', 'setup', '--name', name, '--workspace', workspace);
}

/** `code` only while the channel for sandboxed sessions is open: it comes last, so that rules which match the beginning still do. */
export function fetchCommand(ax: AxCommand, id: MessageId, workspace: string, code?: string): string {
  return axCommand(ax, 'messages', 'fetch', id, '--workspace', workspace, ...(code === undefined ? [] : ['--code', code]));
}

export interface NoticeFacts {
  readonly ax: AxCommand;
  readonly workspace: string;
  /** The oldest waiting message. */
  readonly id: MessageId;
  /** How many wait in all. */
  readonly waiting: number;
  /** 1 for the first notice of these messages; tells a reminder from its first. */
  readonly attempt: number;
  /** Opens these messages to the session through the channel for sandboxed ones, while that is open. */
  readonly code?: string | undefined;
}

const reminder = (attempt: number): string => (attempt > 1 ? ` (reminder ${attempt - 1})` : '');
const count = (waiting: number): string => (waiting === 1 ? 'a message waits' : `${waiting} messages wait`);

/** The notice for an attached session. */
export function fetchNotice(facts: NoticeFacts): string {
  return `ax on this host: ${count(facts.waiting)} for this workspace, unread${reminder(facts.attempt)}. To read ${facts.waiting === 1 ? 'it' : 'the oldest'}, run:\n${fetchCommand(facts.ax, facts.id, facts.workspace, facts.code)}`;
}

/** The notice for a session that is not attached; `name` is the agent's name, or one ax proposes. The message id makes it unique. */
export function setupNotice(facts: NoticeFacts, name: string): string {
  return `ax on this host: ${count(facts.waiting)} for this workspace (${facts.id})${reminder(facts.attempt)}; this session is not set up to read ${facts.waiting === 1 ? 'it' : 'them'}. To set it up, run:\n${setupCommand(facts.ax, name, facts.workspace)}`;
}
