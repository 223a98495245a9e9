/**
 * One request on the control socket, out of its decoded fields.
 *
 * Owns the check of versions and of the shape around `params`; what params mean is the method's own. The origin and the session are
 * the caller's own words: only their form is judged here.
 */
import { parseHarness } from '../../protocol/address.ts';
import { asFields, optionalText, text, whole } from '../../protocol/codec.ts';
import type { Fields, Value } from '../../protocol/codec.ts';
import { METHODS } from '../../protocol/control.ts';
import type { Origin, SessionEnvironment } from '../../protocol/control.ts';
import { AxError } from '../../protocol/errors.ts';
import { parseLabel } from '../../protocol/ids.ts';
import { MAX_LABEL_BYTES, MAX_PATH_BYTES } from '../../protocol/limits.ts';
import { AX_VERSION, CONTROL_PROTOCOL } from '../../protocol/version.ts';

/** Understood in every version of the control protocol, for ever: any CLI can greet and stop any daemon. */
const FROZEN: ReadonlySet<string> = new Set(['daemon.hello', 'daemon.stop']);
const KNOWN: ReadonlySet<string> = new Set(METHODS);
const NO_ORIGIN: Origin = { harness: null, harness_version: null, session_id: null, workspace: null, integration: 'unknown' };

/** Who asks, as far as the socket can tell. */
export interface ControlActor {
  readonly origin: Origin;
  readonly session: SessionEnvironment | null;
}

export interface Request {
  readonly id: number;
  readonly method: string;
  readonly params: Record<string, unknown>;
  readonly actor: ControlActor;
}

/** AxError `update_required` for another version or an unknown method; `protocol_violation`, `invalid_argument`, `too_large` for a bad shape. */
export function readRequest(id: number, fields: Fields): Request {
  const v = whole(fields, 'v');
  const method = text(fields, 'method', 64);
  if (FROZEN.has(method)) return { id, method, params: {}, actor: { origin: NO_ORIGIN, session: null } };
  const details = { daemon_version: AX_VERSION, daemon_protocol: CONTROL_PROTOCOL, request_protocol: v };
  if (v !== CONTROL_PROTOCOL) {
    const message = `the daemon (ax ${AX_VERSION}) speaks control protocol ${CONTROL_PROTOCOL}, the request came in ${v}`;
    throw new AxError('update_required', message, { fix: 'ax daemon restart', details });
  }
  if (!KNOWN.has(method)) {
    const message = `the daemon (ax ${AX_VERSION}, control protocol ${CONTROL_PROTOCOL}) does not know this request, which came in protocol ${v}`;
    throw new AxError('update_required', message, { fix: 'ax daemon restart', details });
  }
  return { id, method, params: asFields(fields['params'], '"params"'), actor: readActor(fields) };
}

function readActor(fields: Fields): ControlActor {
  const origin = asFields(fields['origin'], '"origin"');
  const label = (key: string, max = MAX_LABEL_BYTES): string | null => {
    const value: Value | undefined = Object.hasOwn(origin, key) ? origin[key] : undefined;
    return value === undefined || value === null ? null : parseLabel(value, `origin.${key}`, max);
  };
  const session = fields['session'];
  return {
    origin: {
      harness: label('harness'),
      harness_version: label('harness_version'),
      session_id: label('session_id'),
      workspace: label('workspace', MAX_PATH_BYTES),
      integration: label('integration') ?? 'unknown',
    },
    session: session === undefined || session === null ? null : readSession(asFields(session, '"session"')),
  };
}

function readSession(fields: Fields): SessionEnvironment {
  return {
    harness: parseHarness(fields['harness']),
    session_id: parseLabel(fields['session_id'], 'session.session_id'),
    pid: isNothing(fields['pid']) ? null : whole(fields, 'pid', 1),
    socket: isNothing(fields['socket']) ? null : parseLabel(fields['socket'], 'session.socket', MAX_PATH_BYTES),
    config_dir: optionalText(fields, 'config_dir', MAX_PATH_BYTES) ?? null,
  };
}

function isNothing(value: unknown): boolean {
  return value === undefined || value === null;
}
