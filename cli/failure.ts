/**
 * An error as text, and its exit status.
 *
 * Owns the two forms: the JSON envelope on stdout, or for people one line on stderr and the lines that help (candidates, fix, retry).
 * A command that has already given its answer throws through `AfterAnswer`, so that stdout never holds two objects.
 */
import { AxError, errorBody, toAxError } from '../protocol/errors.ts';
import { SENDER_ENDS } from '../protocol/states.ts';
import type { SenderState } from '../protocol/states.ts';
import { exitOf } from './client.ts';
import { axCommand, axOf, formatOf } from './environment.ts';
import type { Environment } from './environment.ts';
import { errorEnvelope, printOut, printWhole, render, visible } from './output.ts';
import type { Answer } from './output.ts';
import { say } from './say.ts';

/** A failure after the answer stands on stdout: told on stderr in every format. */
export class AfterAnswer extends Error {
  override readonly cause: unknown;

  constructor(cause: unknown) {
    super('failed after the answer was printed');
    this.cause = cause;
  }
}

/** Writes the one answer of a command to stdout, in its format. AfterAnswer when stdout does not take it. */
export function printer({ format }: Environment): (answer: Answer) => Promise<void> {
  return (answer) =>
    printOut(render(format, answer)).catch((error: unknown) => {
      throw new AfterAnswer(error);
    });
}

/** Prints the error and gives the exit status. */
export async function tell(thrown: unknown, args: readonly string[]): Promise<number> {
  const isAfter = thrown instanceof AfterAnswer;
  const error = readyToRun(toAxError(isAfter ? thrown.cause : thrown), args);
  const isTold = !isAfter && formatOf(args) === 'json' && (await tryPrint(`${errorEnvelope(errorBody(error))}\n`));
  if (!isTold) say(humanError(error));
  return exitOf(error);
}

/** False when stdout takes nothing: then stderr has to do. */
async function tryPrint(text: string): Promise<boolean> {
  try {
    await printWhole(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Words before a command that is to be run on the other host: neither this host's path nor its state folder belongs into it. `on NAME` is
 * how the daemon's sentences name that host; a test holds all of them against this.
 */
const ELSEWHERE = /(?:\bon [A-Za-z0-9][\w.-]*|\bon that host|\bon the other host|\bthere|\ba new one)$/i;
/** Candidates of an id that are named; whoever typed too little of it knows that with five. */
const NAMED_IDS = 5;

/** The daemon names commands as `ax …`: here they become what this shell can run, with the program's path and the state folder. */
function readyToRun(error: AxError, args: readonly string[]): AxError {
  if (error.fix === undefined || error.code === 'usage') return error;
  const fix = readyFix(error.fix, axCommand(axOf(args)));
  return fix === error.fix
    ? error
    : new AxError(error.code, error.message, {
        fix,
        ...(error.details === undefined ? {} : { details: error.details }),
        cause: error.cause,
      });
}

/** The words of a fix of the daemon's with `called` for `ax`, but where they are for the other host. */
export function readyFix(fix: string, called: string): string {
  return fix.replaceAll(
    /(^|[:;,] |\()ax (?=(?:daemon|host|agent|send|messages|admin) )/g,
    (found, before: string, at: number, whole: string) => (ELSEWHERE.test(whole.slice(0, at)) ? found : `${before}${called} `),
  );
}

function humanError(error: AxError): string {
  const details = error.details ?? {};
  const candidates = details['candidates'];
  const unnamed = Array.isArray(candidates) ? (candidates as readonly string[]).filter((entry) => !error.message.includes(entry)) : [];
  const named = error.code === 'ambiguous_id' ? unnamed.slice(0, NAMED_IDS) : unnamed;
  const more = unnamed.length - named.length;
  const listed = unnamed.length === 0 ? '' : ` (${named.join(', ')}${more > 0 ? ` and ${more} more` : ''})`;
  let text = `ax: ${visible(error.message)}${visible(listed)}\n`;
  if (error.fix === 'owner') {
    const command = details['command'];
    text += `fix: the owner of the other host must allow it${typeof command === 'string' ? `, there: ${visible(command)}` : ''}\n`;
  } else if (error.fix !== undefined) {
    text += `fix: ${visible(error.fix)}\n`;
  }
  // What has ended for good ends so again: the line is of use only where something may still change.
  const isOver = SENDER_ENDS.has(details['state'] as SenderState);
  if (typeof details['retry'] === 'string' && !isOver) text += `retry: ${visible(details['retry'])}\n`;
  return text;
}
