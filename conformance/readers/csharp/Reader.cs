// A reader of GPACK over the C# code that the Kaitai compiler makes of schema/gpack.ksy.
//
// It speaks the reader protocol of spec/conformance.md: one JSON object a line. `--level structure` leaves the digests
// out, which cost a pass over the file.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Security.Cryptography;
using System.Text;
using System.Web.Script.Serialization;
using Kaitai;

internal static class Reader
{
    private static readonly JavaScriptSerializer Json = new JavaScriptSerializer { MaxJsonLength = int.MaxValue };

    /// <summary>Says what is wrong with a file; every other exception is a fault of this program.</summary>
    private sealed class Rejection : Exception
    {
        internal readonly string Class;
        internal readonly string Rule;

        internal Rejection(string kind, string rule, string message) : base(message)
        {
            Class = kind;
            Rule = rule;
        }
    }

    private static void Main(string[] arguments)
    {
        bool digests = !arguments.SequenceEqual(new[] { "--level", "structure" });
        var plain = new UTF8Encoding(false);
        using (var questions = new StreamReader(Console.OpenStandardInput(), plain))
        using (var answers = new StreamWriter(Console.OpenStandardOutput(), plain) { AutoFlush = true, NewLine = "\n" })
        {
            answers.WriteLine(Json.Serialize(new Dictionary<string, object>
            {
                { "type", "start" }, { "protocol", 1 }, { "name", "gpack-kaitai-csharp" }, { "language", "csharp" },
                { "version", "1" }, { "level", digests ? "digest" : "structure" },
            }));
            for (string line = questions.ReadLine(); line != null; line = questions.ReadLine())
            {
                var asked = Json.Deserialize<Dictionary<string, object>>(line);
                if ((string)asked["type"] == "stop")
                {
                    return;
                }
                answers.WriteLine(Json.Serialize(Answer((string)asked["path"], asked["seq"], digests)));
            }
        }
    }

    private static Dictionary<string, object> Answer(string path, object seq, bool digests)
    {
        var answer = new Dictionary<string, object> { { "type", "result" }, { "seq", seq } };
        try
        {
            answer["dump"] = Read(path, digests);
            answer["verdict"] = "accept";
        }
        catch (Rejection refused)
        {
            answer["verdict"] = "reject";
            answer["class"] = refused.Class;
            answer["message"] = refused.Message;
            if (refused.Rule != null)
            {
                answer["rule"] = refused.Rule;
            }
        }
        return answer;
    }

    /// <summary>Parses a file through seek and read; no blob is read but to hash it, in pieces.</summary>
    private static Dictionary<string, object> Read(string path, bool digests)
    {
        using (FileStream file = File.OpenRead(path))
        {
            var root = new Gpack(new KaitaiStream(file));
            Dictionary<string, object> dump;
            try
            {
                dump = Dump.File(root);
            }
            catch (ValidationFailedError error)
            {
                string rule;
                bool newer = Dump.Newer.TryGetValue(error.SrcPath, out rule);
                throw new Rejection(newer ? "unsupported" : "structure", rule, error.Message);
            }
            catch (EndOfStreamException error)
            {
                throw new Rejection("structure", null, error.Message);
            }
            if (digests)
            {
                CheckDigests(file, root);
            }
            return dump;
        }
    }

    private static void CheckDigests(FileStream file, Gpack root)
    {
        var piece = new byte[1 << 20];
        foreach (Gpack.GpackSectionEntryV1 entry in root.Sections)
        {
            byte[] digest = Digest(file, entry, piece);
            if (!digest.SequenceEqual(entry.Sha256))
            {
                throw new Rejection("digest", "section.sha256", "section " + entry.Name + ": SHA-256 differs");
            }
            bool manifest = entry.KindEnum == Gpack.SectionKind.ManifestJson;
            if (manifest && !digest.SequenceEqual(root.Footer.ManifestSha256))
            {
                throw new Rejection("digest", "manifest.sha256", "the footer's SHA-256 of the manifest differs");
            }
        }
    }

    private static byte[] Digest(FileStream file, Gpack.GpackSectionEntryV1 entry, byte[] piece)
    {
        using (SHA256 sum = SHA256.Create())
        {
            file.Position = (long)entry.Offset;
            for (ulong left = entry.Size; left > 0;)
            {
                int count = file.Read(piece, 0, (int)Math.Min(left, (ulong)piece.Length));
                if (count == 0)
                {
                    throw new Rejection("structure", "section.bounds", "section " + entry.Name + " ends beyond the end of the file");
                }
                sum.TransformBlock(piece, 0, count, null, 0);
                left -= (ulong)count;
            }
            sum.TransformFinalBlock(piece, 0, 0);
            return sum.Hash;
        }
    }
}
