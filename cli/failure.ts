/**
 * An error as text, and its exit status.
 *
 * Owns the two forms: the JSON envelope on stdout, or for people one line on stderr and the lines that help (candidates, fix, retry).
 * A command that has already given its answer throws through `AfterAnswer`, so that stdout never holds two objects.
 */
import { AxError, errorBody, toAxError } from '../protocol/errors.ts';
import { exitOf } from './client.ts';
import { axCommand, axOf, formatOf } from './environment.ts';
import { errorEnvelope, printOut, visible } from './output.ts';

/** A failure after the answer stands on stdout: told on stderr in every format. */
export class AfterAnswer extends Error {
  override readonly cause: unknown;

  constructor(cause: unknown) {
    super('failed after the answer was printed');
    this.cause = cause;
  }
}

/** Prints the error and gives the exit status. */
export async function tell(thrown: unknown, args: readonly string[]): Promise<number> {
  const isAfter = thrown instanceof AfterAnswer;
  const error = readyToRun(toAxError(isAfter ? thrown.cause : thrown), args);
  if (!isAfter && formatOf(args) === 'json') await printOut(`${errorEnvelope(errorBody(error))}\n`);
  else process.stderr.write(humanError(error));
  return exitOf(error);
}

/** The daemon names commands as `ax …`: here they become what this shell can run, with the program's path and the state folder. */
function readyToRun(error: AxError, args: readonly string[]): AxError {
  if (error.fix === undefined || error.code === 'usage') return error;
  const called = axCommand(axOf(args));
  const fix = error.fix.replaceAll(
    /(^|[:;,] |: )ax (?=(?:daemon|host|agent|send|messages|admin) )/g,
    (_match, before: string) => `${before}${called} `,
  );
  return fix === error.fix
    ? error
    : new AxError(error.code, error.message, {
        fix,
        ...(error.details === undefined ? {} : { details: error.details }),
        cause: error.cause,
      });
}

function humanError(error: AxError): string {
  const details = error.details ?? {};
  const candidates = details['candidates'];
  const listed = Array.isArray(candidates)
    ? ` (${(candidates as readonly string[]).filter((entry) => !error.message.includes(entry)).join(', ')})`
    : '';
  let text = `ax: ${visible(error.message)}${listed === ' ()' ? '' : visible(listed)}\n`;
  if (error.fix === 'owner') {
    const command = details['command'];
    text += `fix: the owner of the other host must allow it${typeof command === 'string' ? `, there: ${visible(command)}` : ''}\n`;
  } else if (error.fix !== undefined) {
    text += `fix: ${visible(error.fix)}\n`;
  }
  if (typeof details['retry'] === 'string') text += `retry: ${visible(details['retry'])}\n`;
  return text;
}
