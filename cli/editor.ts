/**
 * A text written in the user's own editor.
 *
 * Owns the temporary file (0600, in a folder that only this user can enter) and its end: folder and all that the editor left in it are
 * removed whatever happens, also when the terminal is closed. The bytes are taken as the editor wrote them.
 */
import { spawn } from 'node:child_process';
import { mkdtemp, open, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AxError } from '../protocol/errors.ts';
import { MAX_BODY_BYTES } from '../protocol/limits.ts';
import { size, visible } from './output.ts';

/**
 * Opens an empty file in the editor (a command line for the shell, as $VISUAL holds one) and gives what was saved.
 * AxError `invalid_state` when the editor cannot be started, fails or leaves no file, `too_large` above MAX_BODY_BYTES.
 */
export async function written(editor: string): Promise<Uint8Array> {
  const folder = await mkdtemp(join(tmpdir(), 'ax-send-'));
  const file = join(folder, 'message.txt');
  try {
    await writeFile(file, '', { mode: 0o600, flag: 'wx' });
    await edit(editor, file);
    return await readBack(editor, file);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function edit(editor: string, file: string): Promise<void> {
  const child = spawn('/bin/sh', ['-c', `${editor} "$1"`, 'editor', file], {
    stdio: ['inherit', process.stdout.isTTY ? 'inherit' : 2, 'inherit'],
  });
  let ending: NodeJS.Signals | undefined;
  const onSignal = (signal: NodeJS.Signals): void => {
    ending = signal;
    child.kill(signal);
  };
  const signals = ['SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, onSignal);
  try {
    const how = await new Promise<string | undefined>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, signal) => resolve(code === 0 ? undefined : signal === null ? `status ${code}` : signal));
    });
    if (ending !== undefined) throw failed(editor, `was ended by ${ending}`);
    if (how !== undefined) throw failed(editor, `ended with ${how}`);
  } finally {
    for (const signal of signals) process.off(signal, onSignal);
  }
}

async function readBack(editor: string, path: string): Promise<Uint8Array> {
  try {
    const { size: length } = await stat(path);
    if (length > MAX_BODY_BYTES)
      throw new AxError(
        'too_large',
        `the text has ${length} bytes; at most ${MAX_BODY_BYTES} (${size(MAX_BODY_BYTES)}) are allowed: nothing was sent`,
        {
          details: { limit: MAX_BODY_BYTES },
        },
      );
    const file = await open(path, 'r');
    try {
      return new Uint8Array(await file.readFile());
    } finally {
      await file.close();
    }
  } catch (error) {
    if (error instanceof AxError) throw error;
    throw failed(editor, `left no file that can be read (${(error as NodeJS.ErrnoException).code ?? String(error)})`);
  }
}

function failed(editor: string, how: string): AxError {
  return new AxError('invalid_state', `the editor (${visible(editor)}) ${how}: nothing was sent`, {
    fix: 'set VISUAL or EDITOR to an editor that works on this terminal, or type the message instead',
  });
}
